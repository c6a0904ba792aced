"""@local_cuda: the header of CUDA's driver interface, or an empty target of the same name.

It is looked for at $CUDA_HOME, then at the standard place of the toolkit; any of CUDA 12 or 13 will
do, and nothing of a toolkit is linked. Without one everything builds, and what needs CUDA is left
out: BUILD files choose by @local_cuda//:defs.bzl.
"""

_DEFS = """\"\"\"Whether there is a CUDA toolkit.\"\"\"

def if_cuda(yes, no = []):
    return %s
"""

def _impl(rctx):
    home = rctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    needed = ["include/cuda.h"]
    missing = [file for file in needed if not rctx.path(home + "/" + file).exists]
    if missing:
        # buildifier: disable=print
        print("building without CUDA: no toolkit at %s (set CUDA_HOME), lacking %s" % (home, ", ".join(missing)))
    else:
        rctx.symlink(home + "/include/cuda.h", "include/cuda.h")
    rctx.file("defs.bzl", _DEFS % ("no" if missing else "yes"), executable = False)
    build = Label("//bazel:cuda_absent.BUILD" if missing else "//bazel:cuda_found.BUILD")
    rctx.symlink(rctx.path(build), "BUILD.bazel")
    rctx.file("WORKSPACE", "")

cuda_configure = repository_rule(
    implementation = _impl,
    environ = ["CUDA_HOME"],
    configure = True,
)
