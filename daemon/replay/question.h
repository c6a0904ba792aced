// Question: what `memtide plan` asks of the planner, and its answer (planning.proto).
//
// An iteration is made from the question (synthetic_model.h); the search chooses what is done with
// its activations, and the engine's replay says what it takes. Micro-batches repeat: with many,
// iterations of few are played, and the others take as long as one more of those.
//
// Thread safety: thread-safe. Deterministic.
#ifndef MEMTIDE_DAEMON_REPLAY_QUESTION_H_
#define MEMTIDE_DAEMON_REPLAY_QUESTION_H_

#include <string>

#include "absl/status/statusor.h"
#include "daemon/replay/activations/model_shape.h"
#include "memtide/v1/planning.pb.h"

namespace memtide {

// INVALID_ARGUMENT says which value cannot be: no parameters, too many chunks or moments, times
// or sizes out of range.
absl::StatusOr<ModelShape> ShapeOf(const v1::PlanQuestion& question);

// INVALID_ARGUMENT, and errors of the replay. Where nothing fits, the reply's plan says what would.
absl::StatusOr<v1::PlanReply> ReplyTo(const v1::PlanQuestion& question);

// The same for questions, on up to `threads` threads, with errors as text in their replies.
v1::PlanReplies ReplyToAll(const v1::PlanQuestions& questions, size_t threads);

// INVALID_ARGUMENT: is no PlanQuestions in protobuf's JSON.
absl::StatusOr<v1::PlanQuestions> ReadQuestions(const std::string& json);
std::string AsJson(const v1::PlanReplies& replies);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_REPLAY_QUESTION_H_
