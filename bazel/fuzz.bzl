"""cc_fuzz_target: one LLVMFuzzerTestOneInput, a libFuzzer binary or a short test."""

def cc_fuzz_target(
        name,
        srcs,
        deps = [],
        corpus = [],
        size = "small",
        tags = [],
        runs = None,
        **kwargs):
    """Declares a fuzz target that is built and run in every configuration.

    With --config=fuzz: a libFuzzer binary (clang, AddressSanitizer). Everywhere else: the same
    function behind bazel/fuzz_driver.cc, which feeds it every corpus file, then a fixed, seeded
    series of mutated and random inputs, so that each test run fuzzes a little and repeatably.

    Args:
      name: the target's name, by habit foo_fuzz.
      srcs: sources, one of which defines LLVMFuzzerTestOneInput.
      deps: as for cc_test.
      corpus: files to start from; each is one input.
      size: as for cc_test.
      tags: as for cc_test.
      runs: how many inputs a test has, for a target that is slow.
      **kwargs: handed to cc_test.
    """
    native.cc_test(
        name = name,
        size = size,
        srcs = srcs,
        args = ["$(rootpath %s)" % f for f in corpus],
        data = corpus,
        env = {} if runs == None else {"MEMTIDE_FUZZ_RUNS": str(runs)},
        linkopts = select({
            "//bazel:fuzz": ["-fsanitize=fuzzer"],
            "//conditions:default": [],
        }),
        deps = deps + select({
            "//bazel:fuzz": [],
            "//conditions:default": ["//bazel:fuzz_driver"],
        }),
        tags = tags + ["fuzz"],
        **kwargs
    )
