#include "daemon/device/first_use/helper.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/cuda/cuda.h"
#include "base/status_macros.h"
#include "daemon/device/first_use/helper_protocol.h"
#include "daemon/device/remote/packet.h"

namespace memtide {
namespace {

// A helper whose daemon asks nothing for this long ends.
constexpr Duration kHelperPatience = std::chrono::seconds(60);
constexpr int kMappings = 8;
// Work is queued in batches that keep the GPU busy for this long.
constexpr Duration kBatchTime = std::chrono::milliseconds(4);
constexpr int kLargestBatch = 4096;
constexpr size_t kWorkedBytes = 2 << 20;

class Helper {
 public:
  Helper(const CudaDriver& driver, int ordinal) : cu_(driver), ordinal_(ordinal) {}

  // Returns what follows "ok".
  absl::StatusOr<std::string> Answer(const HelperPacket& question);

 private:
  absl::Status Check(CUresult error, absl::string_view call) const {
    return CudaStatus(error, absl::StrCat(call, " in the helper process"));
  }
  absl::Status Import(int descriptor, size_t size);
  absl::Status Open(const std::string& hex);
  // Reads what the daemon wrote, and answers in the same byte.
  absl::Status Exchange(CUdeviceptr memory);
  // Allocates the memory that work fills, and finds out how much of it is a batch.
  absl::Status PrepareWork();
  absl::Status QueueBatch();
  absl::Status Work();
  absl::StatusOr<int64_t> MapUnderWork();
  absl::Status MapOnce(CUdeviceptr address, CUmemGenericAllocationHandle handle);
  CUmemAllocationProp Properties() const;

  const CudaDriver& cu_;
  const int ordinal_;
  CUdeviceptr worked_ = 0;  // kWorkedBytes, once PrepareWork has allocated them.
  int batch_ = 1;
};

CUmemAllocationProp Helper::Properties() const {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = ordinal_;
  return properties;
}

absl::StatusOr<std::string> Helper::Answer(const HelperPacket& question) {
  const std::vector<std::string> words = absl::StrSplit(question.text, ' ');
  if (words[0] == "import" && words.size() == 2) {
    uint64_t size = 0;
    if (!absl::SimpleAtoi(words[1], &size)) return absl::InvalidArgumentError(question.text);
    MEMTIDE_RETURN_IF_ERROR(Import(question.descriptor, size));
    return std::string();
  }
  if (words[0] == "open" && words.size() == 2) {
    MEMTIDE_RETURN_IF_ERROR(Open(words[1]));
    return std::string();
  }
  if (words[0] == "map") {
    MEMTIDE_ASSIGN_OR_RETURN(const int64_t longest_us, MapUnderWork());
    return absl::StrCat(longest_us);
  }
  if (words[0] == "rest") return std::string();
  if (words[0] == "work") {
    MEMTIDE_RETURN_IF_ERROR(Work());
    return std::string();
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown question: ", question.text));
}

absl::Status Helper::MapOnce(CUdeviceptr address, CUmemGenericAllocationHandle handle) {
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.vmm.Map(address, kAskedBytes, 0, handle, 0), "cuMemMap"));
  CUmemAccessDesc access = {};
  access.location = Properties().location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return Check(cu_.vmm.SetAccess(address, kAskedBytes, &access, 1), "cuMemSetAccess");
}

absl::Status Helper::Import(int descriptor, size_t size) {
  CUmemGenericAllocationHandle handle = 0;
  void* const passed = reinterpret_cast<void*>(static_cast<intptr_t>(descriptor));
  const absl::Status imported = Check(
      cu_.vmm.ImportFromShareableHandle(&handle, passed, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  close(descriptor);
  MEMTIDE_RETURN_IF_ERROR(imported);
  CUdeviceptr address = 0;
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.vmm.AddressReserve(&address, size, 0, 0, 0), "cuMemAddressReserve"));
  MEMTIDE_RETURN_IF_ERROR(MapOnce(address, handle));
  MEMTIDE_RETURN_IF_ERROR(Exchange(address));
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.vmm.Unmap(address, size), "cuMemUnmap"));
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.vmm.AddressFree(address, size), "cuMemAddressFree"));
  return Check(cu_.vmm.Release(handle), "cuMemRelease");
}

absl::Status Helper::Open(const std::string& hex) {
  const std::string bytes = absl::HexStringToBytes(hex);
  CUipcMemHandle handle;
  if (bytes.size() != sizeof(handle)) return absl::InvalidArgumentError("not a handle");
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  CUdeviceptr address = 0;
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.IpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
            "cuIpcOpenMemHandle"));
  MEMTIDE_RETURN_IF_ERROR(Exchange(address));
  return Check(cu_.IpcCloseMemHandle(address), "cuIpcCloseMemHandle");
}

absl::Status Helper::Exchange(CUdeviceptr memory) {
  unsigned char read = 0;
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.MemcpyDtoHAsync(&read, memory, 1, nullptr), "cuMemcpyDtoHAsync"));
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize"));
  if (read != kFromDaemon) {
    return absl::DataLossError(
        absl::StrCat("another process read ", read, " where ", kFromDaemon, " was written"));
  }
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.MemsetD8Async(memory, kFromHelper, 1, nullptr), "cuMemsetD8Async"));
  return Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize");
}

absl::Status Helper::QueueBatch() {
  for (int i = 0; i < batch_; ++i) {
    MEMTIDE_RETURN_IF_ERROR(
        Check(cu_.MemsetD8Async(worked_, 0, kWorkedBytes, nullptr), "cuMemsetD8Async"));
  }
  return absl::OkStatus();
}

absl::Status Helper::PrepareWork() {
  if (worked_ != 0) return absl::OkStatus();
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.MemAlloc(&worked_, kWorkedBytes), "cuMemAlloc"));
  for (batch_ = 8; batch_ < kLargestBatch; batch_ *= 2) {
    const Instant begun = Now();
    MEMTIDE_RETURN_IF_ERROR(QueueBatch());
    MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize"));
    if (Now() - begun >= kBatchTime) break;
  }
  return absl::OkStatus();
}

absl::Status Helper::Work() {
  MEMTIDE_RETURN_IF_ERROR(PrepareWork());
  CUevent batch_ended = nullptr;
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.events.Create(&batch_ended, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
  MEMTIDE_RETURN_IF_ERROR(QueueBatch());
  MEMTIDE_RETURN_IF_ERROR(SendPacket(kHelperSocket, {"ok", -1}));
  while (!HasPacket(kHelperSocket)) {
    // The next batch is queued before this one has ended: no copy of the daemon meets an idle GPU.
    MEMTIDE_RETURN_IF_ERROR(Check(cu_.events.Record(batch_ended, nullptr), "cuEventRecord"));
    MEMTIDE_RETURN_IF_ERROR(QueueBatch());
    MEMTIDE_RETURN_IF_ERROR(Check(cu_.events.Synchronize(batch_ended), "cuEventSynchronize"));
  }
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.events.Destroy(batch_ended), "cuEventDestroy"));
  return Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize");
}

absl::StatusOr<int64_t> Helper::MapUnderWork() {
  MEMTIDE_RETURN_IF_ERROR(PrepareWork());
  const CUmemAllocationProp properties = Properties();
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.vmm.Create(&handle, kAskedBytes, &properties, 0), "cuMemCreate"));
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.vmm.AddressReserve(&address, kAskedBytes, 0, 0, 0), "cuMemAddressReserve"));
  Duration longest{0};
  for (int i = 0; i < kMappings; ++i) {
    MEMTIDE_RETURN_IF_ERROR(QueueBatch());
    const Instant begun = Now();
    MEMTIDE_RETURN_IF_ERROR(MapOnce(address, handle));
    MEMTIDE_RETURN_IF_ERROR(Check(cu_.vmm.Unmap(address, kAskedBytes), "cuMemUnmap"));
    longest = std::max<Duration>(longest, Now() - begun);
  }
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize"));
  return std::chrono::duration_cast<std::chrono::microseconds>(longest).count();
}

absl::Status Serve(int ordinal) {
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  MEMTIDE_RETURN_IF_ERROR(UseGpu(ordinal));
  Helper helper(*driver, ordinal);
  for (;;) {
    MEMTIDE_ASSIGN_OR_RETURN(const HelperPacket question,
                             ReceivePacket(kHelperSocket, kHelperPatience));
    const absl::StatusOr<std::string> answer = helper.Answer(question);
    const std::string text = answer.ok() ? absl::StrCat("ok ", *answer)
                                         : absl::StrCat("error ", answer.status().message());
    MEMTIDE_RETURN_IF_ERROR(SendPacket(kHelperSocket, {text.substr(0, 1000), -1}));
  }
}

}  // namespace

int RunGpuHelper(int ordinal) {
  // Its asker may be killed while it waits for an answer.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const absl::Status ended = Serve(ordinal);
  // The daemon closes the socket when it has no more questions.
  if (absl::IsUnavailable(ended)) return 0;
  SendPacket(kHelperSocket, {absl::StrCat("error ", ended.message()).substr(0, 1000), -1})
      .IgnoreError();
  return 1;
}

}  // namespace memtide
