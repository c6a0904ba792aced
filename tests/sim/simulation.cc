#include "tests/sim/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/fakes/clients.h"
#include "tests/sim/fakes/hostile.h"

namespace memtide::sim {
namespace {

constexpr size_t kLinesKept = 120;
// Clients renew when half of the lease would have passed by the next tick.
constexpr Duration kLongestTick = std::chrono::milliseconds(100);

absl::Status FaultOf(const Work& work) {
  if (work.kind != Work::Kind::kTransfer && work.kind != Work::Kind::kStep) {
    return absl::ResourceExhaustedError("planted: no memory to be had");
  }
  return absl::InternalError("planted: the transfer failed");
}

uint32_t FaultPercent(const Faults& faults, const Work& work) {
  if (work.kind == Work::Kind::kMakeRegion || work.kind == Work::Kind::kMakeStore ||
      work.kind == Work::Kind::kFillSlot) {
    return faults.make;
  }
  if (work.kind == Work::Kind::kStep) return faults.step;
  if (work.kind != Work::Kind::kTransfer) return 0;
  switch (work.transfer.kind) {
    case StartTransfer::Kind::kSsdToHost:
      return faults.disk_read;
    case StartTransfer::Kind::kHostToSsd:
      return faults.disk_write;
    default:
      return faults.copy;
  }
}

}  // namespace

Simulation::Simulation(const Config& config, FaultInjector* fault_injector, std::ostream* echo)
    : config_(config),
      fault_injector_(fault_injector),
      node_(&verdict_, &probes_),
      model_(config_, &node_, &verdict_, &probes_),
      engine_(std::make_unique<Engine>(ToOptions(config_))),
      trace_(kLinesKept, echo),
      now_(std::chrono::hours(1)),
      luck_(config.seed ^ 0x72657374617274),
      patience_(config.seed ^ 0x70617469656e6365) {
  if (config.faults.lie != 0) node_.SetLies(config.faults.lie, config.seed ^ 0x6c6965);
}

Outcome Simulation::Run(const Config& config, const std::vector<Op>& ops,
                        FaultInjector* fault_injector, std::ostream* echo) {
  Simulation simulation(config, fault_injector, echo);
  Outcome outcome;
  for (const Op& op : ops) {
    if (!simulation.verdict_.ok()) break;
    simulation.Step(op);
    ++outcome.steps;
  }
  simulation.Settle();
  simulation.ReadAll();
  simulation.EndAll();
  outcome.broken = simulation.verdict_.broken();
  outcome.last = simulation.trace_.Last();
  outcome.trace_hash = simulation.trace_.hash();
  outcome.events = simulation.events_;
  outcome.probes = simulation.probes_;
  return outcome;
}

std::vector<SessionId> Simulation::Sessions(bool open_only) const {
  std::vector<SessionId> sessions;
  for (const auto& [id, session] : model_.state().sessions) {
    const bool usable =
        session.phase == Phase::kOpen ||
        (!open_only && (session.phase == Phase::kConnected || session.phase == Phase::kOpening));
    if (usable && !session.hung) sessions.push_back(id);
  }
  return sessions;
}

void Simulation::Step(const Op& op) {
  Random random(op.how);
  switch (op.kind) {
    case OpKind::kConnect:
      return Feed(ClientConnected{SessionId(next_session_++), 1000 + op.who % config_.uids,
                                  static_cast<int32_t>(op.who)});
    case OpKind::kInspect: {
      InspectCall inspect;
      inspect.sessions = random.Percent(50);
      inspect.first_chunk = random.Percent(20) ? random.Below(30) : 0;
      inspect.max_chunks = random.Percent(50) ? random.Below(20) : 0;
      return Ask(inspect);
    }
    case OpKind::kDrain:
      return Ask(DrainCall{});
    case OpKind::kComplete:
      return StepComplete(op.who, &random);
    case OpKind::kTick:
      return PassTime(std::chrono::milliseconds(random.Between(1, config_.tick_ms)));
    case OpKind::kSettle:
      return Settle();
    case OpKind::kRestart:
      if (random.Percent(70)) return Restart();
      dies_in_publish_ = config_.persistent_jobs;
      return;
    case OpKind::kHostMemory:
      return Feed(HostMemory{config_.chunk_size * random.Below(3 * config_.host_reserve + 1)});
    default:
      break;
  }
  const bool any = op.kind == OpKind::kOpen || op.kind == OpKind::kGone ||
                   op.kind == OpKind::kClose || op.kind == OpKind::kHostile;
  const std::vector<SessionId> sessions = Sessions(!any);
  if (!sessions.empty()) StepSession(op.kind, sessions[op.who % sessions.size()], &random);
}

void Simulation::StepSession(OpKind kind, SessionId session, Random* random) {
  const State& state = model_.state();
  std::optional<Event> call;
  switch (kind) {
    case OpKind::kOpen:
      // Mostly once per session.
      if (state.FindSession(session)->phase != Phase::kConnected && !random->Percent(5)) return;
      return AskForMemory(MakeOpen(state, session, random));
    case OpKind::kHang:
      ComputeSome(session, random);
      return model_.SetHung(session);
    case OpKind::kGone:
      return StepGone(session, random);
    case OpKind::kWrite:
      return StepWrite(session, random);
    case OpKind::kEndPart:
      return StepEndPart(session, random);
    case OpKind::kClose:
      ComputeSome(session, random);
      call = CloseCall{CallId(), session};
      break;
    case OpKind::kReplay:
      call = MakeReplay(state, session, random);
      break;
    case OpKind::kHostile:
      call = MakeHostileCall(state, session, NewRequestId(), random);
      break;
    default:
      call = MakeCall(state, kind, session, NewRequestId(), random);
      break;
  }
  if (!call) return;
  if (const auto* end = std::get_if<EndPartCall>(&*call)) {
    return EndPart({end->session, end->part}, end->computed, end->non_finite_gradients);
  }
  const bool for_memory =
      std::holds_alternative<OpenCall>(*call) || std::holds_alternative<ResizeCall>(*call);
  for_memory ? AskForMemory(std::move(*call)) : Ask(std::move(*call));
}

// A dying writer leaves its chunk half written, at times.
void Simulation::StepGone(SessionId session, Random* random) {
  ComputeSome(session, random);
  const std::map<ChunkId, Lease> leases = model_.state().FindSession(session)->leases;
  for (const auto& [chunk, lease] : leases) {
    if (lease.access == Access::kWrite && random->Percent(70)) {
      model_.Write(session, chunk, node_.NewPoison());
    }
  }
  Feed(ClientGone{session});
}

void Simulation::StepWrite(SessionId session, Random* random) {
  std::vector<ChunkId> writable;
  for (const auto& [chunk, lease] : model_.state().FindSession(session)->leases) {
    if (lease.access == Access::kWrite) writable.push_back(chunk);
  }
  if (writable.empty()) return;
  model_.Write(session, writable[random->Below(static_cast<uint32_t>(writable.size()))],
               next_stamp_++);
}

void Simulation::StepComplete(size_t index, Random* random) {
  if (node_.work().empty()) return;
  index %= node_.work().size();
  const Work& work = node_.work()[index];
  // Also once the engine has dropped a part, its making ends first: then nothing fails.
  const bool fails =
      random->Percent(FaultPercent(config_.faults, work)) && work.kind != Work::Kind::kHangUp;
  absl::Status status = fails ? FaultOf(work) : absl::OkStatus();
  Feed(node_.Complete(
      index, std::move(status),
      fault_injector_ == nullptr ? InjectedFault::kNone : fault_injector_->OnComplete(work)));
}

void Simulation::Restart() {
  if (!config_.persistent_jobs || !verdict_.ok()) return;
  dies_in_publish_ = false;
  revokes_.clear();
  Restore restore = node_.Restart(&luck_);
  if (fault_injector_ != nullptr) fault_injector_->Spoil(&restore);
  if (!verdict_.ok()) return;
  engine_ = std::make_unique<Engine>(ToOptions(config_));
  Feed(restore);
  // Clients come back.
  for (uint32_t client = luck_.Below(4); client > 0 && verdict_.ok(); --client) {
    const SessionId session(next_session_++);
    Feed(ClientConnected{session, 1000 + luck_.Below(config_.uids), 1});
    if (!model_.state().FindSession(session)->gone) {
      AskForMemory(MakeOpen(model_.state(), session, &luck_));
    }
  }
}

void Simulation::Ask(Event call) { Feed(WithCall(std::move(call), CallId(next_call_++))); }

void Simulation::AskForMemory(Event call) {
  Ask(InspectCall{});
  Ask(std::move(call));
}

void Simulation::Feed(Event event) {
  if (!verdict_.ok()) return;
  ++events_;
  trace_.Add(now_, event);
  const std::map<SessionId, std::vector<MemoryPlace>> may_die = MayDie(event);
  model_.Before(now_, event);
  std::vector<Effect> effects;
  if (fault_injector_ == nullptr || !fault_injector_->Withhold(event, &effects)) {
    engine_->Handle(now_, event, &effects);
    engine_->CheckInvariants();
  }
  if (fault_injector_ != nullptr) fault_injector_->Spoil(&effects, node_);
  const bool dies = dies_in_publish_ && std::holds_alternative<CommitCall>(event);
  for (const Effect& effect : effects) {
    if (!verdict_.ok()) return;
    if (dies && !std::holds_alternative<Record>(effect)) continue;
    trace_.Add(effect);
    node_.Carry(effect);
    model_.Observe(effect);
    if (const auto* revoke = std::get_if<Revoke>(&effect)) revokes_.push_back(*revoke);
  }
  if (dies) return Restart();
  for (const auto& [id, written] : may_die) {
    const Phase phase = model_.state().FindSession(id)->phase;
    if (phase == Phase::kEnding || phase == Phase::kEnded) node_.LeaveKernels(id, written);
  }
  if (verdict_.ok()) model_.After(event);
  AnswerRevokes();
}

std::map<SessionId, std::vector<MemoryPlace>> Simulation::MayDie(const Event& event) const {
  std::map<SessionId, std::vector<MemoryPlace>> may_die;
  const auto* const gone = std::get_if<ClientGone>(&event);
  if (!config_.quarantine || (gone == nullptr && !std::holds_alternative<Tick>(event))) return {};
  for (const auto& [id, session] : model_.state().sessions) {
    if (gone != nullptr && id != gone->session) continue;
    for (const auto& [chunk, lease] : session.leases) {
      if (lease.tier != Tier::kDevice) continue;
      std::vector<MemoryPlace>& written = may_die[id];
      if (lease.access == Access::kWrite) written.push_back(lease.place);
    }
  }
  return may_die;
}

// Clients give back what they are asked for, most of the time.
void Simulation::AnswerRevokes() {
  while (!revokes_.empty() && verdict_.ok()) {
    const Revoke revoke = revokes_.back();
    revokes_.pop_back();
    if (!model_.state().IsOpen(revoke.session) || patience_.Percent(60)) continue;
    if (model_.state().FindSession(revoke.session)->hung) continue;
    std::optional<Event> release =
        MakeRelease(model_.state(), revoke.session, NewRequestId(), revoke.chunks, revoke.count);
    if (release) Ask(std::move(*release));
  }
}

void Simulation::PassTime(Duration time) {
  now_ += time;
  RenewSessions();
  Feed(Tick{});
}

void Simulation::RenewSessions() {
  for (const SessionId id : Sessions(true)) {
    const SessionState& session = *model_.state().FindSession(id);
    if (now_ - session.renewed + kLongestTick > config_.limits.session_lease / 2) {
      // Time has passed already, but the engine learns it from this very call: in time.
      Ask(RenewCall{CallId(), id});
    }
  }
}

std::string HowToReproduce(const Config& config) {
  return absl::StrCat("to see it again: bazel run //tests/sim:minimize -- ",
                      config.activations ? "--activations " : "", config.parts ? "--parts " : "",
                      config.faults.lie != 0 ? "--lies " : "", config.seed, "\n  ",
                      Describe(config));
}

}  // namespace memtide::sim
