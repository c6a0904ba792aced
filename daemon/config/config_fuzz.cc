// Settings in any text: refused with a reason, or a configuration that keeps its limits.
#include <google/protobuf/text_format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"
#include "bazel/message_mutator.h"
#include "daemon/config/config.h"

namespace memtide {
namespace {

Machine AnyMachine() {
  Machine machine;
  machine.available_memory = GiB(8);
  machine.socket_dir = "/run/memtide";
  machine.ssd_dir = "/a";
  machine.free_space = [](const std::string& directory) -> absl::StatusOr<FreeSpace> {
    if (directory.size() % 7 == 0) return absl::FailedPreconditionError("no such file system");
    return FreeSpace{directory.size() % 3, GiB(10)};
  };
  machine.gpu_uuids = [] { return absl::NotFoundError("no GPU"); };
  machine.inspect_gpu = [](const std::string&) { return absl::NotFoundError("no GPU"); };
  return machine;
}

void Check(const Config& config) {
  MEMTIDE_CHECK(config.host_pool <= GiB(8) && config.ssd_pool <= GiB(30));
  MEMTIDE_CHECK(config.host_pool.IsMultipleOf(kPoolAlignment));
  MEMTIDE_CHECK(config.ssd_pool.IsMultipleOf(kPoolAlignment));
  MEMTIDE_CHECK(config.ssd_pool.IsZero() == config.ssd_dirs.empty());
  MEMTIDE_CHECK(!config.socket_dir.empty());
  MEMTIDE_CHECK(config.session_lease >= std::chrono::seconds(1));
}

}  // namespace
}  // namespace memtide

// Changes the settings as a message, and writes them as text.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  memtide::v1::NodeConfig config;
  const std::string text(reinterpret_cast<const char*>(data), size);
  google::protobuf::TextFormat::Parser parser;
  parser.AllowPartialMessage(true);
  parser.ParseFromString(text, &config);
  memtide::MutateFields(&config, seed);
  std::string mutated;
  google::protobuf::TextFormat::PrintToString(config, &mutated);
  // A letter somewhere makes it another text.
  if (seed % 4 == 0 && !mutated.empty()) mutated[seed / 4 % mutated.size()] ^= 1 + seed % 64;
  if (mutated.size() > most) return size;
  std::memcpy(data, mutated.data(), mutated.size());
  return mutated.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace memtide;  // NOLINT(google-build-using-namespace): one function.
  const auto proto = ParseConfigText(std::string(reinterpret_cast<const char*>(data), size), "x");
  if (!proto.ok()) {
    MEMTIDE_CHECK(!proto.status().message().empty());
    return 0;
  }
  static const Machine machine = AnyMachine();
  const auto config = Validate(*proto, machine);
  if (config.ok()) Check(*config);
  return 0;
}
