#!/usr/bin/env bash
# Words that may not stand in tracked files, and a count of things put off. Exit status 1 on a
# forbidden one. A letter in brackets keeps a pattern from finding itself.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."
status=0

# Folders of one machine: scripts get theirs from mktemp, tests from the test library.
here=':!tests/lint/text_rules.sh'
if git grep -nIE '(^|[^[:alnum:]_.>/}-])/(work|root|home|tmp|mnt)/' -- . "$here" ':!LICENSE'; then
  echo "a path of one machine: make it relative, or make a temporary folder" >&2
  status=1
fi
if git grep -nE '[[:space:]]+$' -- '*.h' '*.cc' '*.cu' '*.inc' '*.proto' '*.sh' '*.py' '*.md' '*.cmake'; then
  echo "blanks at the end of a line" >&2
  status=1
fi
if git grep -nE '(not |un)implemen[t]ed' -- '*.h' '*.cc' '*.cu'; then
  echo "code that is not there" >&2
  status=1
fi
# Without -I Python takes modules from the folder that a script was called in, whose ever that is.
if git grep -nE 'python3?"? (-[a-zA-Z]+ )*-(m|c)?( |$)' -- '*.sh' '*.sbatch' .ci "$here" |
  grep -vE 'python3?"? (-[a-zA-Z]+ )*-I'; then
  echo "Python without -I" >&2
  status=1
fi
# Where the decimal point is a comma awk and printf write one, which no other program reads as a number.
scripts=$(git grep -lE '^set -e?uo pipefail$')
# shellcheck disable=SC2086  # their names have no blanks
if git grep -LE '^export LC_ALL=C$' -- $scripts; then
  echo "a script without LC_ALL=C: its numbers and order are those of the user's locale" >&2
  status=1
fi
# A tag names another image tomorrow.
if git grep -nE '\bdebian=[a-z]' -- launch/container | grep -vE '@sha256:[0-9a-f]{64}$' ||
  [[ $(git grep -hoE '@sha256:.*' -- launch/container | sort -u | wc -l) -ne 1 ]]; then
  echo "a container's base without its digest, or two of them" >&2
  status=1
fi
# What comes from outside is bounded: files by ReadWholeFile(), texts by kMaxTextProtoDepth.
if git grep -nE 'istreambuf_iterator|<< [a-z_]+\.rdbuf\(\)' -- launch parallel trainer; then
  echo "a file read whole without a limit: parallel/base/file_system.h has ReadWholeFile()" >&2
  status=1
fi
if git grep -nE 'TextFormat::(Parser|Parse|Merge)' -- launch parallel trainer ':!parallel/base/messages.cc'; then
  echo "protobuf's text format parsed past parallel/base/messages.h: ParseTextProto()" >&2
  status=1
fi
# A proto3 string that is not UTF-8 makes bytes that nobody can read again.
if git grep -nE 'Serialize(Partial)?(As|To)[A-Z]' -- launch parallel trainer ':!parallel/base/messages.cc'; then
  echo "a message serialized past parallel/base/messages.h: ToBytes()" >&2
  status=1
fi
if git grep -nE 'CHECK\(.*(Parse|Merge)From' -- launch parallel trainer; then
  echo "bytes that cannot be read end the program: parallel/base/messages.h has ParseSent()" >&2
  status=1
fi
# Code 1 asks people to report a bug, and a status without a code has it if it is Internal.
if git grep -nE 'absl::InternalError\(' -- launch parallel trainer ':!launch/commands/command.cc' \
  ':!parallel/base/messages.cc' ':!parallel/comm' \
  ':!trainer/kernels/device_errors.cc'; then
  echo "an Internal error where none was known: is it a bug of this program and nothing else?" >&2
  status=1
fi
# A thread that the system does not give throws; StartThread() says it in a status.
if git grep -nE '^[^/]*std::j?thread(\(| [a-z_]+[({])' -- launch parallel trainer ':!parallel/base/host.cc'; then
  echo "a thread started past parallel/base/host.h: StartThread()" >&2
  status=1
fi
# What a process does follows from what it was told, so only launch/ reads the environment. The variable that hides GPUs
# is named where the driver says that it sees none.
if git grep -nE 'getenv|\benviron\b' -- parallel trainer ':!trainer/kernels/cuda/devices.cc'; then
  echo "the environment read outside of launch/: hand in what it says" >&2
  status=1
fi
# Of inline variables with one name a program keeps one, whatever value the others have.
twice=$(git grep -hoE '^inline constexpr [^(=]*\bk[A-Z][A-Za-z0-9]*' -- '*.h' |
  grep -oE 'k[A-Z][A-Za-z0-9]*$' | sort | uniq -d)
if [[ -n $twice ]]; then
  git grep -nE "^inline constexpr .*\\b($(paste -sd'|' <<<"$twice"))\\b" -- '*.h'
  echo "one name for inline constants of several headers" >&2
  status=1
fi
echo "put off: $(git grep -IwcE 'TO[D]O|FIX[M]E' -- . "$here" | awk -F: '{n += $NF} END {print n + 0}')"
exit $status
