# deepnet_library(NAME SRCS a.cc ... HDRS a.h ... DEPS x ... [OWN_DEPS y ...] [TORCH] [NO_PCH])
#   One folder's code as a static library. Headers are listed so that each is compiled alone
#   (target all_verify_interface_header_sets). TORCH: may include LibTorch; left out of torch-free builds.
#   OWN_DEPS: libraries that its headers do not include, so that its users are compiled without them.
#   NO_PCH: its units have flags of their own, or headers that do not bear abseil before them.
#   With DEEPNET_UNITY the others are compiled up to eight at a time (CMake's UNITY_BUILD), which takes a
#   third less time from nothing; after an edit `cmake --preset release -DDEEPNET_UNITY=OFF` is quicker,
#   until launch/build.sh configures again.
function(deepnet_library name)
  cmake_parse_arguments(arg "TORCH;NO_PCH" "" "SRCS;HDRS;DEPS;OWN_DEPS" ${ARGN})
  if(arg_TORCH AND DEEPNET_PURE_ONLY)
    return()
  endif()
  if(arg_SRCS)
    add_library(${name} STATIC ${arg_SRCS})
    set(scope PUBLIC)
  else()
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_sources(${name} ${scope} FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${arg_HDRS})
  target_include_directories(${name} ${scope} ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} ${scope} ${arg_DEPS})
  if(arg_OWN_DEPS)
    target_link_libraries(${name} PRIVATE ${arg_OWN_DEPS})
  endif()
  if(arg_TORCH)
    target_link_libraries(${name} ${scope} deepnet_torch)
  endif()
  if(arg_SRCS AND NOT arg_NO_PCH)
    deepnet_pch(${name} "${arg_TORCH}")
    list(LENGTH arg_SRCS num_sources)
    if(DEEPNET_UNITY AND num_sources GREATER 1)
      set_target_properties(${name} PROPERTIES UNITY_BUILD ON)
      target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
    endif()
  endif()
endfunction()

# deepnet_pch(TARGET TORCH [FOR_TESTS])
#   A precompiled header of the parts of the standard library, abseil and protobuf that most units
#   include, one for all torch-free targets; and one for all torch targets, with what of LibTorch is in
#   use. With it a torch-free unit compiles in half the time. FOR_TESTS: with GoogleTest, and at -O1 also in
#   a release build: a test's own code compiles a fifth faster; -O0 slows the templates that the product
#   shares with it. Sources still include what they use.
set(deepnet_pch_headers
  <algorithm> <chrono> <cmath> <functional> <map> <memory> <optional> <set> <span> <string> <utility>
  <variant> <vector>
  <absl/container/flat_hash_map.h> <absl/status/statusor.h> <absl/strings/str_cat.h>
  <absl/strings/str_format.h> <absl/strings/str_join.h> <absl/synchronization/mutex.h>
  <absl/time/time.h>
  <google/protobuf/generated_message_reflection.h> <google/protobuf/map.h> <google/protobuf/message.h>
  <google/protobuf/repeated_field.h> <google/protobuf/text_format.h>)
function(deepnet_pch name torch)
  cmake_parse_arguments(arg "FOR_TESTS" "" "" ${ARGN})
  if(NOT torch AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    return()
  endif()
  set(pch deepnet)
  set(headers ${deepnet_pch_headers})
  set(libraries protobuf::libprotobuf absl::flat_hash_map absl::statusor absl::str_format
                absl::strings absl::synchronization absl::time)
  set(options -fpch-preprocess)
  if(torch)
    string(APPEND pch _torch)
    list(PREPEND headers <trainer/kernels/aten.h>)
    list(APPEND libraries deepnet_torch)
  endif()
  if(arg_FOR_TESTS)
    string(APPEND pch _test)
    list(APPEND headers <gmock/gmock.h> <gtest/gtest.h>)
    list(APPEND libraries GTest::gmock GTest::gtest)
    list(APPEND options $<$<CONFIG:Release>:-O1>)
  endif()
  string(APPEND pch _pch)
  if(NOT TARGET ${pch})
    if(NOT EXISTS ${CMAKE_BINARY_DIR}/pch.cc)
      file(WRITE ${CMAKE_BINARY_DIR}/pch.cc "")
    endif()
    add_library(${pch} OBJECT ${CMAKE_BINARY_DIR}/pch.cc)
    target_include_directories(${pch} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${pch} PRIVATE ${libraries})
    target_precompile_headers(${pch} PRIVATE ${headers})
    target_compile_options(${pch} PRIVATE ${options})
  endif()
  target_precompile_headers(${name} REUSE_FROM ${pch})
  target_compile_options(${name} PRIVATE ${options} -fPIC)  # as the header was, programs too
endfunction()

# deepnet_test(NAME SRCS a_test.cc ... DEPS x ... [TORCH] [LABELS long|root|bench] [TIMEOUT s] [COST s])
#   One GoogleTest program and one ctest entry. COST: about how long it runs, where that is long: ctest
#   starts those first.
function(deepnet_test name)
  cmake_parse_arguments(arg "TORCH" "TIMEOUT;COST" "SRCS;DEPS;LABELS" ${ARGN})
  if(arg_TORCH AND DEEPNET_PURE_ONLY)
    return()
  endif()
  add_executable(${name} ${arg_SRCS})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE deepnet_torch)
  endif()
  deepnet_pch(${name} "${arg_TORCH}" FOR_TESTS)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(DEEPNET_SANITIZER)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT})
  if(arg_COST)
    set_tests_properties(${name} PROPERTIES COST ${arg_COST})
  endif()
  if(arg_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}")
  endif()
endfunction()

# deepnet_mpi_test(NAME RANKS n... [HOSTS n] [TCP] SRCS a_test.cc ... DEPS x ... [TORCH] [TIMEOUT s])
#   One GoogleTest program, which links tests_mpi_main for its main(), and a ctest entry NAME_n for
#   each number of ranks: mpirun -n n NAME. HOSTS: also NAME_hosts, one rank on each of n pretend
#   hosts, over TCP (label root). TCP: also NAME_tcp_n and NAME_tcp_hosts, by torchrun's variables
#   instead of MPI. Nothing of MPI where CMake found none.
function(deepnet_mpi_test name)
  cmake_parse_arguments(arg "TORCH;TCP" "TIMEOUT;HOSTS" "RANKS;SRCS;DEPS" ${ARGN})
  if(NOT MPI_C_FOUND AND (DEEPNET_PURE_ONLY OR NOT arg_TCP))
    return()
  endif()
  add_executable(${name} ${arg_SRCS})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} tests_mpi_main GTest::gmock GTest::gtest)
  if(arg_TORCH)
    target_link_libraries(${name} PRIVATE deepnet_torch)
  endif()
  deepnet_pch(${name} "${arg_TORCH}" FOR_TESTS)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  foreach(kind mpi tcp)
    if((kind STREQUAL mpi AND NOT MPI_C_FOUND) OR (kind STREQUAL tcp AND NOT arg_TCP))
      continue()
    endif()
    if(kind STREQUAL mpi)
      set(entry ${name})
      set(run tests/mpi/mpirun.sh)
      set(run_on_hosts tests/mpi/testhosts.sh with ${arg_HOSTS} -n ${arg_HOSTS})
    else()
      set(entry ${name}_tcp)
      set(run tests/mpi/torchrun.sh)
      set(run_on_hosts tests/mpi/torchrun.sh --hosts ${arg_HOSTS})
    endif()
    foreach(ranks ${arg_RANKS})
      add_test(NAME ${entry}_${ranks} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
               COMMAND ${run} ${ranks} $<TARGET_FILE:${name}>)
      set_tests_properties(${entry}_${ranks} PROPERTIES TIMEOUT ${arg_TIMEOUT} PROCESSORS 2
                           ENVIRONMENT MPIEXEC=${MPIEXEC_EXECUTABLE})
    endforeach()
    if(arg_HOSTS)
      add_test(NAME ${entry}_hosts WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
               COMMAND ${run_on_hosts} $<TARGET_FILE:${name}>)
      set_tests_properties(${entry}_hosts PROPERTIES TIMEOUT ${arg_TIMEOUT} PROCESSORS 2 LABELS root
                           RESOURCE_LOCK testhosts ENVIRONMENT MPIEXEC=${MPIEXEC_EXECUTABLE})
    endif()
  endforeach()
endfunction()
