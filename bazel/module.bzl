"""module: the sources, headers and tests of a package, by convention."""

# A compiler reads the headers of a source for seconds, and the source itself for a fraction of one.
# So that the sources of a package are compiled as few units; so many that two CPUs share a large
# package, and that a change of one file compiles a part of it.
_FILES_OF_A_UNIT = 12

# Libraries that nearly every module links. A program takes from them what it uses.
_COMMON = [
    "@system//:absl_base",
    "@system//:absl_status",
    "@system//:absl_strings",
]

_NO_MODULE = ["*_fuzz.cc", "*_benchmark.cc", "*_main.cc", "main.cc"]

def _everywhere(patterns):
    return patterns + ["**/" + pattern for pattern in patterns]

def units(name, srcs):
    """Sources that are compiled together, a dozen files each; by file with --config=by_file.

    Each unit is its files one after the other, so that a change of a file is a change of one unit
    and of no target that depends on it. Messages name the files.

    Args:
      name: what the units are named after.
      srcs: the files.

    Returns:
      srcs for a rule of C++.
    """
    count = (len(srcs) + _FILES_OF_A_UNIT - 1) // _FILES_OF_A_UNIT
    files_each = (len(srcs) + count - 1) // count if count else 1
    made = []
    for i in range(count):
        files = srcs[i * files_each:(i + 1) * files_each]
        unit = "%s_unit%d" % (name, i + 1)
        native.genrule(
            name = unit + "_cc",
            srcs = files,
            outs = [unit + ".cc"],
            cmd = "for f in $(SRCS); do echo \"#line 1 \\\"$$f\\\"\"; cat $$f; done >$@",
            visibility = ["//visibility:private"],
        )
        made.append(unit + ".cc")
    return select({
        "//bazel:by_file": srcs,
        "//conditions:default": made,
    })

def tests(name = "test", srcs = None, deps = [], exclude = [], **kwargs):
    """The tests of a package as one program.

    Args:
      name: of the target.
      srcs: its files; by default every *_test.cc of the package, and of folders that are none.
      deps: what the tests use beside the package itself.
      exclude: files that other targets have.
      **kwargs: as for cc_test.
    """
    if srcs == None:
        srcs = native.glob(_everywhere(["*_test.cc"]), exclude = exclude)
    if "size" not in kwargs:
        kwargs["size"] = "small"
    native.cc_test(
        name = name,
        srcs = units(name, srcs),
        deps = deps + ["@system//:gmock", "@system//:gtest_main"],
        **kwargs
    )

def module(
        name,
        deps = [],
        test_deps = [],
        tagged_tests = {},
        exclude = [],
        test_size = "small",
        test_shards = None,
        test_env = {},
        test_data = [],
        target_compatible_with = [],
        **kwargs):
    """A library of every source and header of the package, and `test` with every test.

    Folders that are no packages belong to it. Left to targets of their own are *_fuzz.cc,
    *_benchmark.cc, *_main.cc and main.cc.

    Args:
      name: the library's name: that of the package.
      deps: modules and other libraries that it uses. What of Abseil nearly all use is there.
      test_deps: what only its tests use.
      tagged_tests: tests that are programs of their own, as they need these tags: {name: tags}.
      exclude: files that other targets have.
      test_size: of `test`.
      test_shards: of `test`.
      test_env: of all tests.
      test_data: of all tests.
      target_compatible_with: of all.
      **kwargs: as for cc_library.
    """
    srcs = native.glob(
        _everywhere(["*.cc"]),
        exclude = exclude + _everywhere(_NO_MODULE + ["*_test.cc"]),
    )
    native.cc_library(
        name = name,
        srcs = units(name, srcs),
        hdrs = native.glob(_everywhere(["*.h"]), exclude = exclude),
        deps = deps + _COMMON,
        target_compatible_with = target_compatible_with,
        **kwargs
    )
    tagged = [test + ".cc" for test in tagged_tests]
    common = {
        "data": test_data,
        "env": test_env,
        "target_compatible_with": target_compatible_with,
    }
    own = native.glob(_everywhere(["*_test.cc"]), exclude = exclude + tagged)
    if own:
        tests(
            srcs = own,
            size = test_size,
            shard_count = test_shards,
            deps = [":" + name] + test_deps,
            **common
        )
    for test, tags in tagged_tests.items():
        tests(
            name = test.split("/")[-1],
            srcs = [test + ".cc"],
            size = test_size,
            tags = tags,
            deps = [":" + name] + test_deps,
            **common
        )
