// CommonSimulation: clients that are scripts of two users, each with a job of its own, which offer
// chunks that they have in common. Thread-compatible.
#ifndef MEMTIDE_TESTS_SIM_COMMON_COMMON_SIMULATION_H_
#define MEMTIDE_TESTS_SIM_COMMON_COMMON_SIMULATION_H_

#include <cstdint>
#include <ostream>

#include "tests/sim/clients/client_simulation.h"

namespace memtide::sim {

ClientConfig WithCommonContents(uint64_t seed);
// The same, with quotas that change, and jobs that are ended.
ClientConfig WithQuotas(uint64_t seed);

class CommonSimulation : public ClientSimulation {
 public:
  static ClientOutcome Run(const ClientConfig& config, std::ostream* echo = nullptr);

 protected:
  using Script = Client;

  // `stream`: of random numbers.
  CommonSimulation(const ClientConfig& config, uint64_t stream, std::ostream* echo);

  void Connect() override;
  void Offer(Script* script) override;
  void Duplicate(Script* script) override;
  void StartPart(Script* script) override;
  void Commit(Script* script) override;
  void Hostile(Script* script) override;
  Stamp AlikeStamp(const Script& script, ChunkId chunk) override;
  bool IsBusy(const Script& script, ChunkId chunk) const override;
  void OnOffer(Script* script, const OfferCall& call, const OfferReply& reply) override;
  void OnDuplicate(Script* script, const DuplicateCall& call, const AllocateReply& reply) override;
  void TakeResults(Script* script, const Held& held) override;
};

}  // namespace memtide::sim

#endif  // MEMTIDE_TESTS_SIM_COMMON_COMMON_SIMULATION_H_
