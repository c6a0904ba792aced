"""@local_cuda: the CUDA toolkit's headers and static runtime, or empty targets of the same names.

The toolkit is looked for at $CUDA_HOME, then at its standard place. Without one everything builds,
and what needs CUDA is left out: BUILD files choose by @local_cuda//:defs.bzl.
"""

_DEFS = """\"\"\"Whether there is a CUDA toolkit.\"\"\"

def if_cuda(yes, no = []):
    return %s
"""

def _impl(rctx):
    home = rctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    needed = ["include/cuda.h", "include/cuda_runtime_api.h", "lib64/libcudart_static.a"]
    missing = [file for file in needed if not rctx.path(home + "/" + file).exists]
    if missing:
        # buildifier: disable=print
        print("building without CUDA: no toolkit at %s (set CUDA_HOME), lacking %s" % (home, ", ".join(missing)))
    else:
        rctx.symlink(home + "/include", "include")
        rctx.symlink(home + "/lib64/libcudart_static.a", "lib/libcudart_static.a")
    rctx.file("defs.bzl", _DEFS % ("no" if missing else "yes"), executable = False)
    build = Label("//bazel:cuda_absent.BUILD" if missing else "//bazel:cuda_found.BUILD")
    rctx.symlink(rctx.path(build), "BUILD.bazel")
    rctx.file("WORKSPACE", "")

cuda_configure = repository_rule(
    implementation = _impl,
    environ = ["CUDA_HOME"],
    configure = True,
)
