# `cmake --install`: a folder that runs wherever it is put, on glibc 2.36 or newer.
#
#   bin/deepnet                     finds its libraries by paths relative to itself
#   lib/deepnet/                    every library it needs but glibc's
#   lib/deepnet/mpi/                Open MPI's, for where the site has none (launch/bundle_libraries.sh)
#   share/deepnet/                  launch/ (recipes, scripts), docs/ and what measures GPUs, as in the source
#   share/{man,bash-completion,zsh} made of `deepnet --help`
#
# launch/bundle.sh makes an archive of it, launch/wheel.sh a wheel, which has libraries of its own.
# Needs patchelf and Python.
if(DEEPNET_PURE_ONLY)
  return()
endif()

set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)  # cpack would build the tests too

# Libraries are copied by a script, because the ones of Debian have no run paths of their own.
install(PROGRAMS $<TARGET_FILE:deepnet> DESTINATION bin)
install(CODE "execute_process(COMMAND ${CMAKE_SOURCE_DIR}/launch/bundle_libraries.sh
    \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT libraries)
install(CODE "execute_process(COMMAND ${CMAKE_SOURCE_DIR}/launch/help_pages.py --program $<TARGET_FILE:deepnet>
    --out \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/share\" COMMAND_ERROR_IS_FATAL ANY)")
foreach(folder launch/recipes launch/corpora launch/lab launch/slurm launch/kubernetes docs)
  install(DIRECTORY ${folder} DESTINATION share/deepnet/${folder}/.. USE_SOURCE_PERMISSIONS
    PATTERN __pycache__ EXCLUDE)
endforeach()
install(PROGRAMS launch/job.sh launch/signals.sh DESTINATION share/deepnet/launch)
# What measures a GPU runs from there too.
install(PROGRAMS tests/gpu/first_hour.sh tests/gpu/speed.sh DESTINATION share/deepnet/tests/gpu)
install(FILES tests/gpu/gpu_machine.sh tests/gpu/first_hour_page.py tests/gpu/speed_table.py
  DESTINATION share/deepnet/tests/gpu)
install(FILES tests/bench/lengths.json tests/bench/pytorch_baseline.py tests/bench/pytorch_gpu.py
  DESTINATION share/deepnet/tests/bench)
install(FILES tests/trainer/data/testdata/udhr.tsv DESTINATION share/deepnet/tests/trainer/data/testdata)
install(PROGRAMS tests/mpi/torchrun.sh DESTINATION share/deepnet/tests/mpi)
install(FILES README.md CHANGELOG.md LICENSE DESTINATION share/deepnet)

# `cpack -G DEB` in the build folder: the same folder as /opt/deepnet.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME deepnet)
set(CPACK_PACKAGE_CONTACT "deepnet's maintainers <deepnet@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "trains very deep translation Transformers and translates with them")
set(CPACK_PACKAGING_INSTALL_PREFIX /opt/deepnet)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36)")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3, openmpi-bin")
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
include(CPack)
