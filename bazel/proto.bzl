"""C++ and Python code from .proto files, with the host's protoc."""

ProtoSourcesInfo = provider(fields = {"transitive": "depset of .proto files", "root": "import root"})

def _sources_impl(ctx):
    return [
        DefaultInfo(files = depset(ctx.files.srcs)),
        ProtoSourcesInfo(
            root = ctx.label.package,
            transitive = depset(ctx.files.srcs, transitive = [d[ProtoSourcesInfo].transitive for d in ctx.attr.deps]),
        ),
    ]

proto_sources = rule(
    implementation = _sources_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".proto"]),
        "deps": attr.label_list(providers = [ProtoSourcesInfo]),
    },
)

_SUFFIXES = {
    "cc": {"hdrs": [".pb.h"], "srcs": [".pb.cc"]},
    "cc_grpc": {"hdrs": [".grpc.pb.h"], "srcs": [".grpc.pb.cc"]},
    "py": {"hdrs": [], "srcs": ["_pb2.py"]},
    "py_grpc": {"hdrs": [], "srcs": ["_pb2_grpc.py"]},
}

def _gen_impl(ctx):
    info = ctx.attr.proto[ProtoSourcesInfo]
    root = info.root
    out_dir = ctx.bin_dir.path + "/" + root
    srcs, hdrs, rel = [], [], []
    for f in ctx.files.proto:
        stem = f.short_path[len(root) + 1:-len(".proto")]
        rel.append(stem + ".proto")
        for s in _SUFFIXES[ctx.attr.lang]["srcs"]:
            srcs.append(ctx.actions.declare_file(stem + s))
        for s in _SUFFIXES[ctx.attr.lang]["hdrs"]:
            hdrs.append(ctx.actions.declare_file(stem + s))
    args = ctx.actions.args()
    args.add("-I" + root)
    tools = []
    if ctx.attr.lang == "cc":
        args.add("--cpp_out=" + out_dir)
    elif ctx.attr.lang == "py":
        args.add("--python_out=" + out_dir)
    else:
        plugin = ctx.file._grpc_cpp if ctx.attr.lang == "cc_grpc" else ctx.file._grpc_py
        tools.append(plugin)
        args.add("--plugin=protoc-gen-grpc=" + plugin.path)
        args.add("--grpc_out=" + out_dir)
    args.add_all(rel)
    ctx.actions.run(
        executable = ctx.file._protoc,
        arguments = [args],
        inputs = info.transitive,
        tools = tools,
        outputs = srcs + hdrs,
        mnemonic = "Protoc",
        progress_message = "Generating %s for %s" % (ctx.attr.lang, ctx.label),
    )
    return [
        DefaultInfo(files = depset(srcs + hdrs)),
        OutputGroupInfo(srcs = depset(srcs), hdrs = depset(hdrs)),
    ]

_proto_gen = rule(
    implementation = _gen_impl,
    attrs = {
        "proto": attr.label(providers = [ProtoSourcesInfo]),
        "lang": attr.string(values = _SUFFIXES.keys()),
        "_protoc": attr.label(default = "@local_protoc//:protoc", allow_single_file = True, executable = True, cfg = "exec"),
        "_grpc_cpp": attr.label(default = "@local_protoc//:grpc_cpp_plugin", allow_single_file = True, executable = True, cfg = "exec"),
        "_grpc_py": attr.label(default = "@local_protoc//:grpc_python_plugin", allow_single_file = True, executable = True, cfg = "exec"),
    },
)

def cc_grpc_library(name, proto, deps = [], grpc = True, **kwargs):
    kinds = ["cc"] + (["cc_grpc"] if grpc else [])
    srcs, hdrs = [], []
    for k in kinds:
        _proto_gen(name = name + "_gen_" + k, proto = proto, lang = k)
        native.filegroup(name = name + "_" + k + "_srcs", srcs = [name + "_gen_" + k], output_group = "srcs")
        native.filegroup(name = name + "_" + k + "_hdrs", srcs = [name + "_gen_" + k], output_group = "hdrs")
        srcs.append(name + "_" + k + "_srcs")
        hdrs.append(name + "_" + k + "_hdrs")
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        includes = ["."],
        copts = ["-w"],
        deps = deps + ["@system//:protobuf"] + (["@system//:grpcpp"] if grpc else []),
        **kwargs
    )

def py_grpc_library(name, proto, grpc = True, **kwargs):
    kinds = ["py"] + (["py_grpc"] if grpc else [])
    for k in kinds:
        _proto_gen(name = name + "_gen_" + k, proto = proto, lang = k)
    native.py_library(name = name, srcs = [name + "_gen_" + k for k in kinds], imports = ["."], **kwargs)
