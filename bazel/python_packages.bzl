"""@python_packages: pure Python packages of the environment that tools/setup makes, for the tarball.

site_packages.txt has the path of the environment's packages, for tests that train with torch. Without
that environment (tools/setup has not run) the group and the file are empty, and a message says so.
"""

_BUILD = """
filegroup(
    name = "all",
    srcs = glob(%r, allow_empty = True),
    visibility = ["//visibility:public"],
)
exports_files(["site_packages.txt"])
"""

def _impl(rctx):
    env = rctx.os.environ
    cache = env.get("MEMTIDE_CACHE") or (env.get("XDG_CACHE_HOME") or env.get("HOME", "") + "/.cache") + "/memtide"
    library = rctx.path(cache + "/venv/lib")
    found = [p for p in library.readdir() if p.basename.startswith("python3")] if library.exists else []
    missing = []
    for package in rctx.attr.packages:
        source = found[0].get_child("site-packages").get_child(package) if found else None
        if source and source.exists:
            rctx.symlink(source, package)
        else:
            missing.append(package)
    if missing:
        # buildifier: disable=print
        print("no Python package %s in %s/venv: run tools/setup before the tarball is built" % (", ".join(missing), cache))
    rctx.file("site_packages.txt", str(found[0].get_child("site-packages")) if found else "")
    rctx.file("WORKSPACE", "")
    rctx.file("BUILD.bazel", _BUILD % ["%s/**/*.py" % package for package in rctx.attr.packages], executable = False)

python_packages = repository_rule(
    implementation = _impl,
    attrs = {"packages": attr.string_list()},
    environ = ["HOME", "MEMTIDE_CACHE", "XDG_CACHE_HOME"],
    configure = True,
)
