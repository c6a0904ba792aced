#include "tests/sim/clients/client_config.h"

namespace memtide::sim {

void DrawRun(const std::vector<ClientOp>& optional, Random* random, ClientConfig* config) {
  config->steps = random->Between(200, 700);
  config->limits.waiting_calls_per_session = random->Between(3, 8);
  config->limits.max_wait = std::chrono::milliseconds(random->Between(1, 30) * 500);
  config->limits.session_lease = std::chrono::milliseconds(random->Between(4, 20) * 100);
  std::map<ClientOp, uint32_t>& weights = config->weights;
  const bool deadly = random->Percent(30);
  for (const ClientOp operation : {ClientOp::kDie, ClientOp::kClose, ClientOp::kHang}) {
    if (!deadly) weights.erase(operation);
  }
  for (const ClientOp operation : optional) {
    if (!random->Percent(50)) weights.erase(operation);
  }
  if (config->hostile) weights[ClientOp::kHostile] = random->Between(3, 40);
  if (random->Percent(20)) weights[ClientOp::kComplete] /= 6;
  if (random->Percent(20)) weights[ClientOp::kRelease] /= 4;
}

EngineOptions ToOptions(const ClientConfig& config) {
  const Bytes chunk = MiB(2);
  EngineOptions options;
  if (config.device_slots > 0) options.device_capacities = {chunk * config.device_slots};
  options.host_capacity = chunk * config.host_slots;
  options.ssd_capacity = chunk * config.ssd_slots;
  options.limits = config.limits;
  options.host_reserve = chunk * config.host_reserve;
  options.persistent_jobs = config.keeps;
  return options;
}

}  // namespace memtide::sim
