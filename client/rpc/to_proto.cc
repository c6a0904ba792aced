#include "client/rpc/to_proto.h"

namespace memtide::client {

// The daemon's ToMoments() reads what this function writes.
void AddMoments(absl::Span<const Moment> moments,
                google::protobuf::RepeatedPtrField<v1::Moment>* field) {
  for (const Moment& moment : moments) {
    v1::Moment* const proto = field->Add();
    proto->set_phase(ToProto(moment.phase));
    proto->set_name(moment.name);
    proto->set_own_device_bytes(moment.own_device.count());
    proto->set_own_host_bytes(moment.own_host.count());
    for (const Moment::Use& use : moment.uses) {
      v1::Use* const used = proto->add_uses();
      used->set_chunk_id(use.chunk.value());
      used->set_access(ToProto(use.access));
    }
    proto->set_continues(moment.continues);
    proto->set_ends_iteration(moment.ends_iteration);
  }
}

void SetDuration(Duration duration, google::protobuf::Duration* field) {
  field->set_seconds(duration / std::chrono::seconds(1));
  field->set_nanos(static_cast<int32_t>((duration % std::chrono::seconds(1)).count()));
}

}  // namespace memtide::client
