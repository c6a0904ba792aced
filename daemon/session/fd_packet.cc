#include "daemon/session/fd_packet.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "memtide/v1/session.pb.h"
#include "proto/kinds.h"

namespace memtide {
namespace {

// A refusal may quote what a client sent; it must fit a packet whatever that was.
constexpr size_t kMaxReasonBytes = 2048;

std::string Encode(const v1::FdFrame& frame) {
  std::string packet = frame.SerializeAsString();
  MEMTIDE_CHECK(packet.size() <= kMaxPacketBytes) << packet.size() << " bytes";
  return packet;
}

}  // namespace

absl::StatusOr<Hello> DecodeHello(absl::string_view packet) {
  if (packet.size() > kMaxPacketBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("packet longer than ", kMaxPacketBytes, " bytes"));
  }
  v1::FdHello hello;
  if (!hello.ParseFromArray(packet.data(), static_cast<int>(packet.size()))) {
    return absl::InvalidArgumentError("the packet is not an FdHello");
  }
  if (hello.protocol_version() != kProtocolVersion) {
    return absl::UnimplementedError(
        absl::StrCat("protocol_version ", hello.protocol_version(), " is not supported; known: ",
                     kProtocolVersion, ". Use a client and a daemon of the same release"));
  }
  Hello result;
  result.program = hello.program().substr(0, kMaxProgramBytes);
  for (char& c : result.program) {
    // The name is printed in logs and listings, where control characters could forge lines.
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return result;
}

std::string EncodeWelcome(const Welcome& welcome) {
  v1::FdFrame frame;
  frame.mutable_welcome()->set_token(welcome.token.data(), welcome.token.size());
  frame.mutable_welcome()->set_boot_id(welcome.boot_id);
  frame.mutable_welcome()->set_grpc_target(welcome.grpc_target);
  return Encode(frame);
}

std::string EncodeRefused(const absl::Status& reason) {
  MEMTIDE_CHECK(!reason.ok()) << "refused for no reason";
  v1::FdFrame frame;
  frame.mutable_refused()->set_code(reason.raw_code());
  frame.mutable_refused()->set_message(std::string(reason.message().substr(0, kMaxReasonBytes)));
  return Encode(frame);
}

std::string EncodeRegion(RegionId region, const MemoryExport& memory) {
  v1::FdFrame frame;
  frame.mutable_region()->set_region_id(region.value());
  frame.mutable_region()->set_size_bytes(memory.size.count());
  frame.mutable_region()->set_memory(ToProto(memory.kind));
  frame.mutable_region()->set_cuda_ipc_handle(memory.ipc_handle);
  return Encode(frame);
}

std::string EncodeRegionGone(RegionId region, uint32_t device_slots, uint32_t lease_budget) {
  v1::FdFrame frame;
  frame.mutable_region_gone()->set_region_id(region.value());
  frame.mutable_region_gone()->set_device_slots(device_slots);
  frame.mutable_region_gone()->set_lease_budget(lease_budget);
  return Encode(frame);
}

std::string EncodeLeaseBudget(const SendLeaseBudget& budget) {
  v1::FdFrame frame;
  frame.mutable_lease_budget()->set_slots(budget.slots);
  frame.mutable_lease_budget()->set_leases(budget.lease_budget);
  frame.mutable_lease_budget()->set_max_in_use(budget.most);
  return Encode(frame);
}

std::string EncodeRevoke(uint32_t count, const std::vector<ChunkId>& chunks) {
  v1::FdFrame frame;
  frame.mutable_revoke()->set_count(count);
  for (const ChunkId chunk : chunks) frame.mutable_revoke()->add_chunk_ids(chunk.value());
  return Encode(frame);
}

}  // namespace memtide
