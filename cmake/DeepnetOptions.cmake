# Flags every target gets; those of kernels for GPUs stand in DeepnetCuda.cmake.
#
# -ffp-contract=off: a*b+c is two roundings unless the code says fma, so that bits do not depend on
# what the compiler found to fuse (docs/design/determinism.md).
# A designated initializer may leave fields to their defaults.
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers;-ffp-contract=off;-fno-math-errno;-fopenmp-simd>")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")

if(DEEPNET_SANITIZER)
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${DEEPNET_SANITIZER};-fno-omit-frame-pointer>")
  add_link_options(-fsanitize=${DEEPNET_SANITIZER})
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms on std::string's operator+ and copies (GCC bugs 105651, 105329).
  add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:-Wno-restrict;-Wno-array-bounds>")
endif()

find_program(DEEPNET_CCACHE ccache)
if(DEEPNET_CCACHE)
  # Paths below the source folder count relative to the build folder: presets and clones share objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${DEEPNET_CCACHE})
endif()
find_program(DEEPNET_MOLD mold)
if(DEEPNET_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  add_link_options(-fuse-ld=mold)
endif()
