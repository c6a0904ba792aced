def python_test(name, main, data = [], imports = [], env = {}, args = [], **kwargs):
    e = dict(env)
    e["MEMTIDE_IMPORTS"] = ":".join(imports)
    native.sh_test(
        name = name,
        srcs = ["//bazel:run_python.sh"],
        args = ["$(rootpath %s)" % main] + args,
        data = [main] + data,
        env = e,
        **kwargs
    )
