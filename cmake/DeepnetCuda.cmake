# What is for GPUs: compiled by nvcc (DEEPNET_CUDA), or by the host's compiler for the tests' emulated
# GPU (DEEPNET_EMULATED_GPU), or left out.
if(DEEPNET_CUDA AND DEEPNET_EMULATED_GPU)
  message(FATAL_ERROR "DEEPNET_CUDA and DEEPNET_EMULATED_GPU exclude each other: a build is for one of them")
endif()

# Ampere, Hopper, Blackwell; what comes later translates Blackwell's PTX when it loads it.
set(deepnet_cuda_architectures 80-real 90-real 100-real 100-virtual)

if(DEEPNET_CUDA)
  find_package(CUDAToolkit REQUIRED)
  if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES ${deepnet_cuda_architectures})
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # LibTorch's: a process has one runtime
  enable_language(CUDA)
  set(deepnet_cuda_architectures ${CMAKE_CUDA_ARCHITECTURES})
  # The C++ standard holds for CUDA too; CMake before 3.26 does not know that nvcc has C++20.
  foreach(form STANDARD EXTENSION)
    if(NOT CMAKE_CUDA20_${form}_COMPILE_OPTION)
      set(CMAKE_CUDA20_${form}_COMPILE_OPTION -std=c++20)
    endif()
  endforeach()
  # As -ffp-contract=off for C++: kernels fuse where they say fmaf, so that the emulated GPU has the
  # same bits but for functions like expf.
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--expt-relaxed-constexpr;-Xcompiler=-Wall;-Werror=all-warnings>")
  add_library(deepnet_cuda_runtime INTERFACE)
  target_link_libraries(deepnet_cuda_runtime INTERFACE CUDA::cudart CUDA::cublasLt)
endif()

if(DEEPNET_EMULATED_GPU)
  set(DEEPNET_CUDA_HEADERS "" CACHE PATH
      "Folder with CUDA's, cuBLASLt's and NCCL's headers for the emulated GPU (default: the toolkit's or the user's cache)")
  # The toolkit's, or those that launch/fetch_libtorch.sh --cuda-headers brings.
  foreach(folder ${DEEPNET_CUDA_HEADERS} $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include
                 /usr/local/cuda/include ${deepnet_cache}/cuda-headers-13.0/include)
    if(NOT deepnet_cuda_include AND EXISTS ${folder}/crt/host_defines.h AND EXISTS ${folder}/cublasLt.h
       AND EXISTS ${folder}/cuda_runtime.h AND EXISTS ${folder}/nccl.h)
      set(deepnet_cuda_include ${folder})
    endif()
  endforeach()
  if(NOT deepnet_cuda_include)
    message(FATAL_ERROR "The emulated GPU needs CUDA's headers: run launch/fetch_libtorch.sh --cuda-headers, "
                        "or pass -DDEEPNET_CUDA_HEADERS=<folder with cuda_runtime.h, cublasLt.h and nccl.h>")
  endif()
  message(STATUS "CUDA headers: ${deepnet_cuda_include}")
  find_package(Boost 1.70 REQUIRED COMPONENTS context)  # fibers
  add_library(deepnet_cuda_headers INTERFACE)
  target_include_directories(deepnet_cuda_headers SYSTEM INTERFACE ${deepnet_cuda_include})
  add_library(deepnet_cuda_runtime INTERFACE)
  target_link_libraries(deepnet_cuda_runtime INTERFACE deepnet_cuda_headers emulated_gpu_kernels)
  # What links NCCL links the emulated one.
  add_library(deepnet_nccl INTERFACE)
  target_link_libraries(deepnet_nccl INTERFACE deepnet_emulated_gpu)
endif()

# Ranges for profilers: header-only, and without one that listens they cost nothing.
if(DEEPNET_CUDA OR DEEPNET_EMULATED_GPU)
  find_path(deepnet_nvtx_include nvtx3/nvToolsExt.h NO_CACHE
            HINTS ${CUDAToolkit_INCLUDE_DIRS} ${deepnet_cuda_include} NO_DEFAULT_PATH)
endif()
if(deepnet_nvtx_include)
  add_library(deepnet_nvtx INTERFACE)
  target_include_directories(deepnet_nvtx SYSTEM INTERFACE ${deepnet_nvtx_include})
  target_compile_definitions(deepnet_nvtx INTERFACE DEEPNET_NVTX)
  target_link_libraries(deepnet_nvtx INTERFACE ${CMAKE_DL_LIBS})
endif()

# deepnet_cuda_library(NAME SRCS a.cu b.cc c.h ... HDRS a.h ... DEPS x ...)
#   A library for GPUs, as deepnet_library(); does not exist in a build without. Headers that only .cu
#   files may include stand among SRCS. Programs of a build for the emulated GPU that link it also
#   link one of its devices (tests/gpu/emulated).
function(deepnet_cuda_library name)
  if(NOT DEEPNET_CUDA AND NOT DEEPNET_EMULATED_GPU)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SRCS;HDRS;DEPS" ${ARGN})
  deepnet_library(${name} NO_PCH SRCS ${arg_SRCS} HDRS ${arg_HDRS} DEPS ${arg_DEPS} deepnet_cuda_runtime)
  if(DEEPNET_EMULATED_GPU)
    # Vectors are read through pointers to other types; pragmas are nvcc's.
    set(kernels ${arg_SRCS})
    list(FILTER kernels INCLUDE REGEX "\\.cu$")
    set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS
      "-include;${CMAKE_SOURCE_DIR}/tests/gpu/emulated/cuda_on_host.h;-fno-strict-aliasing;-Wno-unknown-pragmas")
  endif()
endfunction()
