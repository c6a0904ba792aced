// PlanReport: a found plan for programs (ActivationPlan) and for people (a table).
//
// Thread safety: thread-safe. Pure.
#ifndef MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PLAN_REPORT_H_
#define MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PLAN_REPORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "daemon/replay/activations/activation_model.h"
#include "daemon/replay/activations/search.h"
#include "memtide/v1/activations.pb.h"

namespace memtide {

// Moved tensors go to host memory where there is a device, else to the SSD.
v1::ActivationPlan ToProto(const ActivationModel& model, const Found& found, bool has_device);

// protobuf's JSON, with the names of activations.proto.
std::string AsJson(const v1::ActivationPlan& plan);
std::string AsTable(const ActivationModel& model, const v1::ActivationPlan& plan);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_ACTIVATIONS_PLAN_REPORT_H_
