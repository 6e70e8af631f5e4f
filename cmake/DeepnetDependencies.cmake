# Libraries from outside. Any of them may live under a prefix: -DCMAKE_PREFIX_PATH="/opt/protobuf;/opt/abseil".
find_package(Threads REQUIRED)
find_package(Protobuf 3.21 REQUIRED)
# Debian's libsentencepiece.so exports an older protobuf of its own; with libprotobuf.so in the same
# process the two mix and crash. Ours is therefore linked statically and kept private.
find_library(DEEPNET_STATIC_PROTOBUF libprotobuf.a)
if(NOT DEEPNET_STATIC_PROTOBUF)
  message(FATAL_ERROR "libprotobuf.a not found: name it with -DDEEPNET_STATIC_PROTOBUF=<file>, or name "
                      "its prefix in CMAKE_PREFIX_PATH")
endif()
foreach(configuration "" _RELEASE _DEBUG)
  set_property(TARGET protobuf::libprotobuf
               PROPERTY IMPORTED_LOCATION${configuration} ${DEEPNET_STATIC_PROTOBUF})
endforeach()
add_link_options(LINKER:--exclude-libs,libprotobuf.a)
find_package(absl REQUIRED)
find_package(GTest REQUIRED)
find_package(ZLIB REQUIRED)
set_property(TARGET protobuf::libprotobuf APPEND PROPERTY
             INTERFACE_LINK_LIBRARIES ZLIB::ZLIB Threads::Threads)
find_package(PkgConfig REQUIRED)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)

# Where launch/fetch_libtorch.sh puts what it brings.
if(DEFINED ENV{XDG_CACHE_HOME})
  set(deepnet_cache $ENV{XDG_CACHE_HOME}/deepnet)
else()
  set(deepnet_cache $ENV{HOME}/.cache/deepnet)
endif()

if(DEEPNET_PURE_ONLY)
  return()
endif()

# MPI: the system's, or a site's own by its prefix. Without one, mpi_communicator_stub.cc stands in.
set(DEEPNET_MPI_ROOT "" CACHE PATH "Prefix of the MPI library (default: the one whose mpicc is found)")
option(DEEPNET_MPI "Link MPI where it is found" ON)
if(DEEPNET_MPI)
  enable_language(C)  # its C interface is the one that lasts
  if(DEEPNET_MPI_ROOT)
    set(MPI_HOME ${DEEPNET_MPI_ROOT})
  endif()
  find_package(MPI COMPONENTS C)
  if(NOT MPI_C_FOUND)
    message(STATUS "No MPI: several ranks run as threads of one process only")
  endif()
endif()

# LibTorch by own imported targets: the wheel's TorchConfig.cmake asks for a CUDA toolkit even for
# a CPU build. torch/include/google (protobuf 3.13 headers) must not exist: the fetch script leaves it out.
if(NOT DEEPNET_TORCH_ROOT)
  set(DEEPNET_TORCH_ROOT ${deepnet_cache}/libtorch-2.11.0/torch)
endif()
if(NOT EXISTS ${DEEPNET_TORCH_ROOT}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found in '${DEEPNET_TORCH_ROOT}': run launch/fetch_libtorch.sh, "
                      "or pass -DDEEPNET_TORCH_ROOT=<folder with include/ and lib/>")
endif()
if(EXISTS ${DEEPNET_TORCH_ROOT}/include/google/protobuf)
  message(FATAL_ERROR "${DEEPNET_TORCH_ROOT}/include/google holds an old protobuf: remove that folder")
endif()
message(STATUS "LibTorch: ${DEEPNET_TORCH_ROOT}")

add_library(deepnet_torch INTERFACE)
target_include_directories(deepnet_torch SYSTEM INTERFACE
  ${DEEPNET_TORCH_ROOT}/include ${DEEPNET_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_directories(deepnet_torch INTERFACE ${DEEPNET_TORCH_ROOT}/lib)
target_link_options(deepnet_torch INTERFACE
  -Wl,-rpath,${DEEPNET_TORCH_ROOT}/lib
  -Wl,-rpath-link,${DEEPNET_TORCH_ROOT}/../nvidia/cu13/lib)
target_link_libraries(deepnet_torch INTERFACE torch_cpu c10)
if(DEEPNET_CUDA)
  # Where launch/fetch_libtorch.sh --cuda-toolkit brought one, it is of LibTorch's own release.
  if(NOT DEFINED CUDAToolkit_ROOT AND NOT DEFINED ENV{CUDAToolkit_ROOT}
     AND NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX}
     AND EXISTS ${DEEPNET_TORCH_ROOT}/../nvidia/cu13/bin/nvcc)
    set(CUDAToolkit_ROOT ${DEEPNET_TORCH_ROOT}/../nvidia/cu13)
  endif()
  find_package(CUDAToolkit REQUIRED)
  target_link_options(deepnet_torch INTERFACE
    -Wl,-rpath-link,${CUDAToolkit_LIBRARY_DIR} -Wl,--no-as-needed -Wl,--allow-shlib-undefined)
  # Without CUDA's headers: units compile as in a CPU build, except those that link deepnet_nccl.
  target_link_libraries(deepnet_torch INTERFACE torch_cuda c10_cuda $<LINK_ONLY:CUDA::cudart>)
  # The NCCL that libtorch_cuda loads: its headers and its library must be of one version.
  find_path(DEEPNET_NCCL_INCLUDE nccl.h HINTS ${DEEPNET_TORCH_ROOT}/../nvidia/nccl/include
            ${CUDAToolkit_INCLUDE_DIRS})
  find_library(DEEPNET_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
               HINTS ${DEEPNET_TORCH_ROOT}/../nvidia/nccl/lib ${CUDAToolkit_LIBRARY_DIR}
               ${CUDAToolkit_ROOT}/lib)
  if(DEEPNET_NCCL_INCLUDE AND DEEPNET_NCCL_LIBRARY)
    message(STATUS "NCCL: ${DEEPNET_NCCL_LIBRARY}")
    add_library(deepnet_nccl INTERFACE)
    target_include_directories(deepnet_nccl SYSTEM INTERFACE ${DEEPNET_NCCL_INCLUDE})
    target_link_libraries(deepnet_nccl INTERFACE ${DEEPNET_NCCL_LIBRARY} CUDA::cudart)
  endif()
endif()
