#include "tests/sim/op.h"

#include "absl/strings/str_cat.h"
#include "tests/sim/random.h"

namespace memtide::sim {
namespace {

constexpr const char* kOpNames[kOpKinds] = {
    "kConnect", "kOpen",    "kHang",          "kClose",   "kGone",       "kAllocate",
    "kFetch",   "kRelease", "kWrite",         "kEvict",   "kFree",       "kDescribe",
    "kInspect", "kDrain",   "kReplay",        "kHostile", "kComplete",   "kTick",
    "kSettle",  "kResize",  "kReturnRegions", "kReport",  "kHostMemory", "kStep",
    "kPublish", "kRestart", "kDiscard",       "kPart",    "kEndPart",
};

OpKind Pick(const Config& config, Random* random) {
  uint32_t total = 0;
  for (const uint32_t weight : config.weights) total += weight;
  uint32_t at = random->Below(total);
  for (int kind = 0; kind < kOpKinds; ++kind) {
    if (at < config.weights[kind]) return static_cast<OpKind>(kind);
    at -= config.weights[kind];
  }
  return OpKind::kTick;
}

}  // namespace

std::vector<Op> MakeOps(const Config& config) {
  Random random(config.seed ^ 0x6d656d74696465);
  std::vector<Op> ops;
  const auto add = [&](OpKind kind) {
    ops.push_back({kind, random.Below(1 << 16), random.Below(1 << 30)});
  };
  // Without sessions that have chunks nothing can happen: begin with some.
  for (uint32_t session = random.Between(1, 3); session > 0; --session) {
    add(OpKind::kConnect);
    add(OpKind::kOpen);
  }
  for (int work = 0; work < 6; ++work) add(OpKind::kComplete);
  add(OpKind::kAllocate);
  for (uint32_t step = 0; step < config.steps; ++step) add(Pick(config, &random));
  return ops;
}

std::string ToSource(const std::vector<Op>& ops) {
  std::string source = "{";
  for (const Op& op : ops) {
    absl::StrAppend(&source, source.size() > 1 ? ",\n " : "",
                    "{OpKind::", kOpNames[static_cast<size_t>(op.kind)], ", ", op.who, ", ", op.how,
                    "}");
  }
  return source + "}";
}

}  // namespace memtide::sim
