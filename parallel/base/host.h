// What this process can say of itself and of where it runs, to be compared with other ranks'.
#pragma once

#include <string>

namespace deepnet {

// "node17"; "unknown host" where the system does not say.
std::string HostName();

// Hexadecimal CRC32C of the running program's file: ranks that differ in it run different builds.
// "unknown" where the system does not show the file.
std::string ProgramFingerprint();

// Cores this process may use, by its affinity mask.
int UsableCores();

// Threads for each of `ranks_on_host` (> 0) ranks of one host, at least 1: a share of the cores,
// or, where the launcher has bound this rank to some of them, all of its own.
int ThreadsPerRank(int ranks_on_host);

}  // namespace deepnet
