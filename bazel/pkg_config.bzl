"""System libraries found with pkg-config: one header-less cc_library each."""

def _words(s):
    return [w for w in s.replace("\n", " ").split(" ") if w]

def _keep_last(flags):
    """Drops all but the last of each repeated -l flag."""
    seen, out = {}, []
    for f in reversed(flags):
        if f.startswith("-l") and f in seen:
            continue
        seen[f] = True
        out.append(f)
    return reversed(out)

def _impl(rctx):
    tool = rctx.which("pkg-config") or rctx.which("pkgconf")
    if not tool:
        fail("pkg-config is not on PATH (Debian: apt install pkg-config)")
    build = ["package(default_visibility = [\"//visibility:public\"])\n"]
    have = {}
    for name, modules in rctx.attr.packages.items():
        # One call each: pkgconf takes most of a second over Abseil's module graph.
        r = rctx.execute([tool, "--print-errors", "--cflags", "--libs"] + _words(modules))
        have[name] = r.return_code == 0
        optional = name in rctx.attr.optional
        if not have[name] and not optional:
            fail("%s: pkg-config cannot find %s\n%s" % (name, modules, r.stderr))
        flags = _words(r.stdout) if have[name] else []
        defines = [f[2:] for f in flags if f.startswith("-D") and f != "-DNOMINMAX"]
        for f in flags:
            if f.startswith("-I"):
                fail("%s: headers in %s, where the compiler does not look by itself" % (name, f[2:]))
        links = [f for f in _keep_last(flags) if f.startswith("-l") or f.startswith("-L") or f.startswith("-Wl,")]
        if links:
            links = ["-Wl,--push-state,--as-needed"] + links + ["-Wl,--pop-state"]
        if have[name] and optional:
            defines.append("HAVE_" + name.upper())
        build.append("cc_library(\n    name = %r,\n    defines = %r,\n    linkopts = %r,\n)\n" % (name, defines, links))
    for name, lib in rctx.attr.without_pc.items():
        library = lib.split(" ")
        deps = [":" + dep for dep in library[1:]]
        build.append("cc_library(\n    name = %r,\n    linkopts = [%r],\n    deps = %r,\n)\n" % (name, library[0], deps))
    rctx.file("WORKSPACE", "")
    rctx.file("BUILD.bazel", "\n".join(build))
    rctx.file("defs.bzl", "HAVE = %r\n" % have)

pkg_config_repository = repository_rule(
    implementation = _impl,
    attrs = {
        "packages": attr.string_dict(mandatory = True, doc = "target: pkg-config modules"),
        "without_pc": attr.string_dict(doc = "target: '-lname dep...', for libraries without a .pc file, or that need not be there"),
        "optional": attr.string_list(),
    },
    environ = ["PATH", "PKG_CONFIG_LIBDIR", "PKG_CONFIG_PATH"],
    configure = True,
)
