#!/usr/bin/env python3
"""Nothing is deleted that the program has not made, and nothing is written through a link.

Every line of the product that deletes something, or that opens a file for writing beside the
FileSystem (parallel/base/file_system.h), stands below with the reason why it may. A new one is a
mistake until somebody has thought of a reason; one that is gone leaves the list.
"""

import re
import subprocess
import sys

CALLS = {
    r"\.(h|cc)$": r"DeleteTree\(|DeleteIfThere\(|(\.|->)Delete\(|\bunlink(at)?\(|remove_all\(|fs::remove\("
    r"|filesystem::remove\(|\brmdir\(|\bremove\(path|\bofstream\b|\bfopen\(|O_CREAT",
    r"\.py$": r"rmtree\(|\.unlink\(|os\.remove\(|\.rmdir\(",
    r"\.sh$|\.sbatch$": r"\brm -|\bmv ",
}

UNFINISHED = "its name ends in kUnfinishedEnd"
OWN_FOLDER = "in the folder of this rank of this preparation"
REASONS = {
    "parallel/base/file_system.cc": {
        "unlinkat(parent, name": "the one function that deletes trees",
        "remove(path.c_str())": "Delete",
        "DeleteTree(const std::string& path) override": "declared",
        "inner_.DeleteTree(path)": "the observed one",
        "inner_.Delete(path)": "the observed one",
        "fs_.Delete(unfinished_)": "UnusedName",
        "DeleteIfThere(FileSystem& fs": "defined",
        "exists ? fs.DeleteTree(path)": "DeleteIfThere: its callers are below",
        "O_WRONLY | O_CREAT | O_APPEND": "the one function that opens for writing; O_NOFOLLOW",
    },
    "parallel/base/file_system.h": {
        "virtual absl::Status Delete": "declared",
        "absl::Status DeleteIfThere(": "declared",
    },
    "parallel/comm/agreement.cc": {"fs.Delete(path)": "written a moment before"},
    "parallel/comm/rendezvous.cc": {
        "store.Delete(ClaimKey": "no file: a key of the rendezvous",
        "store.Delete(RankKey": "no file: a key of the rendezvous",
        "store.Delete(key)": "no file: a key of the rendezvous",
    },
    "launch/commands/prepare.cc": {"Delete(folder / unfinished)": "UnusedName"},
    "launch/launcher.cc": {
        "unfinished, O_WRONLY | O_CREAT | O_EXCL": "UnusedName, in the user's own folder",
        "unlink(unfinished.c_str())": "the file that was just created",
    },
    "launch/commands/train_text.cc": {
        "DeleteIfThere(*files, unfinished)": UNFINISHED,
        "DeleteIfThere(*files, folder)": "CheckTextFolder has found the mark of --text in it",
    },
    "trainer/checkpoint/checkpoint.cc": {
        "fs.DeleteTree(JoinPath(run_folder, name))": "a checkpoint's name; " + UNFINISHED,
        "if (aside) RETURN_IF_ERROR(fs.DeleteTree(replaced))": "a checkpoint's name with kReplacedEnd",
        "return aside ? fs.DeleteTree(replaced)": "a checkpoint's name with kReplacedEnd",
    },
    "trainer/checkpoint/retention.cc": {
        "fs.DeleteTree(temporary)": "a checkpoint by its name, which had a manifest in FindOld's run",
        "fs.Delete(JoinPath(run_folder, name))": "a pointer to a checkpoint that is gone",
    },
    "trainer/checkpoint/run_lock.cc": {
        "fs_.Delete(path).IgnoreError()": "the lock that was just created",
        "fs_.Delete(claim)": "the claim that was just created",
        "fs.Delete(path)": "IsUnusedName",
        "fs_.Delete(path_)": "the lock, which Check() has read",
    },
    "trainer/checkpoint/tools/spread_writer.cc": {"fs_.DeleteTree(temporary_folder_)": UNFINISHED},
    "trainer/data/prepare/cleaning.cc": {
        "unlink(FileName(static_cast<int>(part))": OWN_FOLDER,
        "unlink(FileName(part)": OWN_FOLDER,
    },
    "trainer/data/prepare/file_writer.cc": {
        "unlink(path.c_str())": "the file that Create() replaces by its contract",
        'fopen(path.c_str(), "wbx")': "a new file",
    },
    "trainer/data/prepare/folder.cc": {
        "O_RDWR | O_CREAT": "the lock; O_NOFOLLOW, and nothing is written",
        "DeleteTree(context_.temporary)": UNFINISHED,
        "DeleteTree(context.temporary)": UNFINISHED,
        "files->Delete(path)": "a link with that name",
        "files->Delete(manifest)": "the corpus that is replaced",
        "DeleteIfThere(*context.files, JoinPath(context.output, file.name()))": "a file that its manifest lists",
        "files->DeleteTree(path));": "in the folder whose name ends in kUnfinishedEnd",
        "OutputScratch())": "a name that only Publish() gives",
    },
    "trainer/data/corpus_shard.cc": {
        "unlink(earlier.c_str())": OWN_FOLDER,
        "unlink(IndexPath()": OWN_FOLDER,
        'fopen(path.c_str(), "wbx")': "a new file",
        'fopen(writer->IndexPath().c_str(), "w+bx")': "a new file",
    },
    "trainer/doctor/doctor.cc": {"files.Delete(token)": "written a moment before"},
    "trainer/doctor/host_check.cc": {
        "files.Delete(path)": "a name with a time and a rank, created a moment before",
        "files.Delete(first)": "a name with a time and a rank, created a moment before",
        "O_RDWR | O_CREAT": "that file; O_NOFOLLOW, and nothing is written",
    },
    "trainer/interop/export.cc": {
        "DeleteIfThere(fs, folder)": UNFINISHED,
        "fs.DeleteTree(temporary)": UNFINISHED,
        "fs.Delete(temporary)": UNFINISHED + "; empty",
    },
    "launch/bundle.sh": {"rm -rf \"$work\"": "mktemp"},
    "launch/corpora/back_translate.sh": {"mv \"$new\"": "mktemp"},
    "launch/corpora/debian_corpus.py": {
        "rmtree(half": "in .deepnet-work",
        "deb.unlink()": "in .deepnet-work",
        '(out / "manifest.json").unlink': "check_output has read it",
        "rmtree(work)": "in .deepnet-work",
    },
    "launch/corpora/download.py": {
        "self.path.unlink": "the unfinished part of a download, in the folder for archives",
        "self.note_path.unlink": "the note beside it",
        "part.note_path.unlink": "the note beside it",
    },
    "launch/corpora/fetch.py": {
        "link.unlink(": "a link, or a file by OPUS-100's name in the folder for links that was named",
        "path.unlink()": "the archive that was fetched",
    },
    "launch/fetch_libtorch.sh": {
        "rm -rf \"$work\"": "mktemp",
        "rm -rf \"$target\"": "deepnet's own folder in the user's cache",
        "mv \"$work/unpacked\"": "to that name",
    },
    "launch/lab/runs.py": {"rmtree(run": "the run folder of a point, which lab.py has made"},
    "launch/quickstart.sh": {"rm -rf \"$trial\"": "mktemp"},
    "launch/wheel.sh": {"rm -rf \"$work\"": "mktemp", "mv \"$work/deepnet/share\"": "mktemp"},
    "launch/slurm/run.sh": {"rm -f \"$rank_logs/failures\"": "written by the job's ranks"},
}


def main():
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "parallel", "trainer", "launch"],
        encoding="utf-8", capture_output=True, check=True,
    ).stdout.split()
    mistakes, calls, used = [], 0, set()
    for path in files:
        pattern = next((CALLS[end] for end in CALLS if re.search(end, path)), None)
        try:
            lines = open(path, encoding="utf-8").read().split("\n") if pattern else []
        except FileNotFoundError:
            continue  # removed, not yet committed
        for number, line in enumerate(lines, 1):
            code = re.split(r"^\s*(?://|#)| // ", line)[0]
            if not pattern or not re.search(pattern, code):
                continue
            calls += 1
            known = [key for key in REASONS.get(path, {}) if key in line]
            used.update((path, key) for key in known)
            if not known:
                mistakes.append(f"{path}:{number}: no reason is listed: {line.strip()}")
    mistakes += [
        f"{path}: is listed and not there: {key}"
        for path, keys in REASONS.items() for key in keys if (path, key) not in used
    ]
    print("\n".join(mistakes) or f"deletions and files opened for writing: {calls} lines, each with its reason")
    sys.exit(bool(mistakes))


main()
