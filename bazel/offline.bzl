"""Stand-ins for the repositories Bazel's own WORKSPACE suffix would download.

Debian's bazel-bootstrap carries @bazel_tools, but not the rules_cc, rules_java and
remote_coverage_tools that it loads. Official releases (a non-empty
native.bazel_version) fetch those themselves and must not see these.
"""

def _stub_impl(rctx):
    for path, content in rctx.attr.files.items():
        rctx.file(path, content, executable = False)

_stub_repo = repository_rule(
    implementation = _stub_impl,
    attrs = {"files": attr.string_dict()},
)

def _native(names):
    return "".join(["%s = native.%s\n" % (n, n) for n in names])

def offline_toolchain_repos():
    if native.bazel_version:
        return
    _stub_repo(name = "rules_cc", files = {
        "WORKSPACE": "",
        "BUILD": "",
        "cc/BUILD": "",
        "cc/defs.bzl": _native(["cc_binary", "cc_import", "cc_library", "cc_test", "cc_toolchain", "cc_toolchain_suite"]),
    })
    _stub_repo(name = "rules_java", files = {
        "WORKSPACE": "",
        "BUILD": "",
        "java/BUILD": "",
        "java/defs.bzl": _native(["java_binary", "java_import", "java_library", "java_runtime", "java_toolchain"]),
    })
    _stub_repo(name = "remote_coverage_tools", files = {
        "WORKSPACE": "",
        "BUILD": """
package(default_visibility = ["//visibility:public"])
sh_binary(name = "coverage_report_generator", srcs = ["unavailable.sh"])
sh_binary(name = "lcov_merger", srcs = ["unavailable.sh"])
""",
        "unavailable.sh": "#!/bin/sh\necho 'no coverage tools in an offline build' >&2\nexit 1\n",
    })
