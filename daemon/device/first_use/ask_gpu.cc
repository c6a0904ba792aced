#include "daemon/device/first_use/ask_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "daemon/device/cuda_memory.h"
#include "daemon/device/first_use/helper.h"
#include "daemon/device/first_use/helper_protocol.h"
#include "daemon/device/remote/helper_process.h"
#include "daemon/device/remote/packet.h"

namespace memtide {
namespace {

constexpr Bytes kCopied = MiB(2), kPinned = MiB(16);
// A copy waits for a time slice of a millisecond where processes take turns, so that a few small
// ones show it, and the best round is one that nothing else disturbed.
constexpr int kCopies = 4, kRounds = 10;
// Making a context takes up to a second, and more while another process makes one.
constexpr Duration kPatience = std::chrono::seconds(6);

double SecondsSince(Instant begun) { return std::chrono::duration<double>(Now() - begun).count(); }

class Questions {
 public:
  Questions(const CudaDriver& driver, const CudaDeviceFacts& facts, HelperProcess helper,
            v1::GpuAnswers* answers)
      : cu_(driver), facts_(facts), helper_(std::move(helper)), answers_(answers) {}

  void AskAll() {
    answers_->set_coherent(facts_.coherent);
    if (facts_.descriptors) {
      answers_->set_descriptors(
          Note("passing memory by descriptor", Pass(MemoryKind::kCudaDescriptor)));
    }
    if (facts_.legacy_ipc) {
      answers_->set_legacy_ipc(
          Note("passing memory by legacy CUDA IPC", Pass(MemoryKind::kCudaIpc)));
    }
    Note("pinning host memory", Pin());
    Note("copying beside another process's work", CopyBesideWork());
    // The last question, because a failure may break the helper's context. Programs map only memory
    // that passes by descriptor.
    answers_->set_maps_under_work(!answers_->descriptors() ||
                                  Note("mapping memory beside running work", MapUnderWork()));
  }

 private:
  // Returns whether `status` is OK, and adds a failure if it is not.
  bool Note(absl::string_view what, const absl::Status& status) {
    if (!status.ok()) answers_->add_failures(absl::StrCat(what, ": ", status.message()));
    return status.ok();
  }
  absl::Status Check(CUresult error, absl::string_view call) const {
    return CudaStatus(error, call);
  }
  absl::StatusOr<std::unique_ptr<CudaMemory>> Allocate(Bytes size, MemoryKind kind) const {
    CudaMemoryOptions options;
    options.driver = &cu_;
    options.ordinal = facts_.ordinal;
    options.name = "question";
    options.size = size;
    return CudaMemory::Create(options, kind);
  }

  absl::Status Pass(MemoryKind kind);
  absl::Status Pin();
  absl::Status CopyBesideWork();
  // Returns the best of some rounds, in bytes a second.
  absl::StatusOr<double> Copy(CUdeviceptr to, const void* from);
  absl::Status MapUnderWork();
  // Copies both ways until the helper answers, or for kPatience.
  absl::Status CopyUntilAnswer();
  absl::Status CopyUntilAnswer(CUdeviceptr memory, char* host);

  const CudaDriver& cu_;
  const CudaDeviceFacts& facts_;
  HelperProcess helper_;
  v1::GpuAnswers* const answers_;
};

absl::Status Questions::Pass(MemoryKind kind) {
  MEMTIDE_ASSIGN_OR_RETURN(const std::unique_ptr<CudaMemory> memory,
                           Allocate(Bytes(kAskedBytes), kind));
  MEMTIDE_ASSIGN_OR_RETURN(const CUdeviceptr address, memory->Address());
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.MemsetD8Async(address, kFromDaemon, 1, nullptr), "cuMemsetD8Async"));
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize"));
  const MemoryExport exported = memory->Export();
  const bool by_descriptor = kind == MemoryKind::kCudaDescriptor;
  const std::string question =
      by_descriptor ? absl::StrCat("import ", kAskedBytes)
                    : absl::StrCat("open ", absl::BytesToHexString(exported.ipc_handle));
  MEMTIDE_RETURN_IF_ERROR(helper_.Ask(question, by_descriptor ? exported.fd : -1).status());
  unsigned char read = 0;
  MEMTIDE_RETURN_IF_ERROR(
      Check(cu_.MemcpyDtoHAsync(&read, address, 1, nullptr), "cuMemcpyDtoHAsync"));
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize"));
  if (read == kFromHelper) return absl::OkStatus();
  return absl::DataLossError("what another process wrote did not arrive");
}

absl::Status Questions::Pin() {
  void* const memory = mmap(nullptr, kPinned.count(), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return absl::ResourceExhaustedError("mmap failed");
  const Instant begun = Now();
  const CUresult pinned = cu_.MemHostRegister(memory, kPinned.count(), CU_MEMHOSTREGISTER_PORTABLE);
  const double seconds = SecondsSince(begun);
  if (pinned == CUDA_SUCCESS) {
    answers_->set_pinned_bytes_per_second(static_cast<double>(kPinned.count()) / seconds);
    cu_.MemHostUnregister(memory);
  }
  munmap(memory, kPinned.count());
  return Check(pinned, "cuMemHostRegister");
}

absl::StatusOr<double> Questions::Copy(CUdeviceptr to, const void* from) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Instant begun = Now();
    for (int i = 0; i < kCopies; ++i) {
      MEMTIDE_RETURN_IF_ERROR(
          Check(cu_.MemcpyHtoDAsync(to, from, kCopied.count(), nullptr), "cuMemcpyHtoDAsync"));
    }
    MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize"));
    best = std::max(best, static_cast<double>(kCopied.count()) * kCopies / SecondsSince(begun));
  }
  return best;
}

absl::Status Questions::CopyBesideWork() {
  MEMTIDE_ASSIGN_OR_RETURN(
      const std::unique_ptr<CudaMemory> memory,
      Allocate(kCopied, facts_.descriptors ? MemoryKind::kCudaDescriptor : MemoryKind::kCudaIpc));
  MEMTIDE_ASSIGN_OR_RETURN(const CUdeviceptr address, memory->Address());
  void* host = nullptr;
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.MemHostAlloc(&host, kCopied.count(), 0), "cuMemHostAlloc"));
  const absl::StatusOr<double> alone = Copy(address, host);
  absl::Status status = alone.status();
  if (status.ok()) status = helper_.Ask("work").status();
  if (status.ok()) {
    const absl::StatusOr<double> beside = Copy(address, host);
    status = beside.status();
    if (status.ok()) {
      answers_->set_copy_bytes_per_second(*alone);
      answers_->set_copy_bytes_per_second_beside_work(*beside);
    }
    // The next question ends the work.
    status.Update(helper_.Send("rest"));
    status.Update(helper_.Answer().status());
    status.Update(helper_.Answer().status());
  }
  cu_.MemFreeHost(host);
  return status;
}

absl::Status Questions::CopyUntilAnswer(CUdeviceptr memory, char* host) {
  CUstream out = nullptr;
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamCreate(&out, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
  const size_t size = kCopied.count();
  const Instant begun = Now();
  do {
    MEMTIDE_RETURN_IF_ERROR(
        Check(cu_.MemcpyHtoDAsync(memory, host, size, nullptr), "cuMemcpyHtoDAsync"));
    MEMTIDE_RETURN_IF_ERROR(
        Check(cu_.MemcpyDtoHAsync(host + size, memory + size, size, out), "cuMemcpyDtoHAsync"));
    MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamSynchronize(nullptr), "cuStreamSynchronize"));
    MEMTIDE_RETURN_IF_ERROR(Check(cu_.StreamSynchronize(out), "cuStreamSynchronize"));
  } while (!HasPacket(helper_.socket()) && Now() - begun < kPatience);
  return Check(cu_.StreamDestroy(out), "cuStreamDestroy");
}

absl::Status Questions::CopyUntilAnswer() {
  MEMTIDE_ASSIGN_OR_RETURN(const std::unique_ptr<CudaMemory> memory,
                           Allocate(kCopied * 2, MemoryKind::kCudaDescriptor));
  MEMTIDE_ASSIGN_OR_RETURN(const CUdeviceptr address, memory->Address());
  void* host = nullptr;
  MEMTIDE_RETURN_IF_ERROR(Check(cu_.MemHostAlloc(&host, kCopied.count() * 2, 0), "cuMemHostAlloc"));
  const absl::Status status = CopyUntilAnswer(address, static_cast<char*>(host));
  cu_.MemFreeHost(host);
  return status;
}

absl::Status Questions::MapUnderWork() {
  MEMTIDE_RETURN_IF_ERROR(helper_.Send("map"));
  Note("copying while another process maps memory", CopyUntilAnswer());
  MEMTIDE_ASSIGN_OR_RETURN(const std::string text, helper_.Answer());
  double longest_us = 0;
  if (!absl::SimpleAtod(text, &longest_us)) return absl::InternalError(text);
  answers_->set_longest_mapping_ms(longest_us / 1000);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::GpuAnswers> AskGpu(const CudaDeviceFacts& facts, const std::string& program) {
  MEMTIDE_ASSIGN_OR_RETURN(const CudaDriver* driver, LoadCudaDriver());
  MEMTIDE_RETURN_IF_ERROR(UseGpu(facts.ordinal));
  MEMTIDE_ASSIGN_OR_RETURN(
      HelperProcess helper,
      HelperProcess::Start(program, {kHelperFlag, absl::StrCat(facts.ordinal)}, kPatience));
  v1::GpuAnswers answers;
  answers.set_gpu(absl::StrCat(facts.name, ", ", facts.FormatUuid()));
  Questions(*driver, facts, std::move(helper), &answers).AskAll();
  return answers;
}

}  // namespace memtide
