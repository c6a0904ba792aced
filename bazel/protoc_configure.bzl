"""Finds the host's protoc and gRPC plugins."""

_TOOLS = ["protoc", "grpc_cpp_plugin", "grpc_python_plugin"]

def _impl(rctx):
    names = []
    for t in _TOOLS:
        p = rctx.which(t)
        if not p:
            fail("%s is not on PATH (Debian: apt install protobuf-compiler protobuf-compiler-grpc)" % t)
        rctx.symlink(p, t)
        names.append(t)
    rctx.file("WORKSPACE", "")
    rctx.file("BUILD.bazel", "exports_files(%r)\n" % names)

protoc_configure = repository_rule(
    implementation = _impl,
    environ = ["PATH"],
    configure = True,
)
