// A training process for a test to kill: joins the job "killed", checks that its chunks hold one
// whole step, prints which ("at 7"), and computes and commits steps, printing each, until it is
// killed. Arguments: the directory of the sockets, and the number of sets of chunks (10 MiB each)
// of a new job (default: 3).
//
// Every parameter of the job is the step's negated number, and every momentum is a function of that
// number, so a mixture of two steps is detected.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cstdint>
#include <string>
#include <vector>

#include "client/memtide.h"

namespace {

// The chunks of a set; kNewParameter and kNewMomentum are shadow chunks.
enum { kGradient, kParameter, kMomentum, kNewParameter, kNewMomentum, kKinds };
constexpr uint64_t kChunkBytes = 2 << 20;
constexpr uint64_t kElements = kChunkBytes / sizeof(float);

void Require(int code, const char* what) {
  if (code == MEMTIDE_OK) return;
  printf("%s: %s\n", what, memtide_last_error());
  fflush(stdout);
  exit(1);
}

class Job {
 public:
  Job(const char* socket_dir, uint32_t sets) : sets_(sets) {
    memtide_options options = {};
    options.struct_bytes = sizeof(options);
    options.socket_dir = socket_dir;
    options.job_name = "killed";
    options.program = "stepper";
    options.chunk_bytes = kChunkBytes;
    options.time_to_live_s = 600;
    Require(memtide_open(&options, &client_), "open");
    memtide_properties properties = {};
    properties.struct_bytes = sizeof(properties);
    Require(memtide_get_properties(client_, &properties), "properties");
    base_ = reinterpret_cast<uint64_t>(properties.base);
    char* manifest = nullptr;
    size_t manifest_bytes = 0;
    Require(memtide_committed(client_, &step_, &manifest, &manifest_bytes), "committed");
    std::vector<uint64_t> ids(manifest_bytes / sizeof(uint64_t));
    if (ids.empty()) {
      memtide_free_text(manifest);
      Begin();
    } else {
      memcpy(ids.data(), manifest, ids.size() * sizeof(uint64_t));
      memtide_free_text(manifest);
      Require(memtide_attach(client_, ids.data(), static_cast<uint32_t>(ids.size()), &first_),
              "attach");
      ids_ = ids;
      sets_ = static_cast<uint32_t>(ids_.size()) / kKinds;
    }
  }

  uint64_t step() const { return step_; }

  // Returns an error if the content of the chunks is not that of one step; empty: none.
  std::string Check() const {
    float momentum = 0;
    for (uint64_t i = 0; i < step_; ++i) momentum = momentum * 0.5f + 1;
    for (uint32_t set = 0; set < sets_; ++set) {
      const auto* parameter = reinterpret_cast<const float*>(At(set, kParameter));
      const auto* momentums = reinterpret_cast<const float*>(At(set, kMomentum));
      for (uint64_t i = 0; i < kElements; i += 509) {
        if (parameter[i] == -static_cast<float>(step_) && momentums[i] == momentum) continue;
        return "torn: set " + std::to_string(set) + " has " + std::to_string(parameter[i]) +
               " and " + std::to_string(momentums[i]) + " at step " + std::to_string(step_);
      }
    }
    return "";
  }

  void Step() {
    for (uint32_t set = 0; set < sets_; ++set) Compute(set);
    std::vector<uint32_t> places, fresh;
    for (uint32_t set = 0; set < sets_; ++set) {
      for (const int kind : {kParameter, kMomentum}) {
        places.push_back(Place(set, kind));
        fresh.push_back(Place(set, kind + kNewParameter - kParameter));
      }
    }
    Require(memtide_commit(client_, step_ + 1, places.data(), fresh.data(), places.size(), nullptr,
                           nullptr, 0, ids_.data(), ids_.size() * sizeof(uint64_t)),
            "commit");
    ++step_;
  }

 private:
  void Begin() {
    ids_.resize(sets_ * kKinds);
    const auto count = static_cast<uint32_t>(ids_.size());
    Require(memtide_allocate(client_, MEMTIDE_OTHER, count, &first_), "allocate");
    Require(memtide_chunk_ids(client_, first_, count, ids_.data()), "chunk_ids");
    for (uint32_t set = 0; set < sets_; ++set) {
      auto* gradient = reinterpret_cast<float*>(At(set, kGradient));
      for (uint64_t i = 0; i < kElements; ++i) gradient[i] = 2;
    }
  }
  // The gradient's sign is subtracted from the parameter, and half of it is added to half of the
  // momentum.
  void Compute(uint32_t set) {
    uint32_t places[kKinds];
    for (int kind = 0; kind < kKinds; ++kind) places[kind] = Place(set, kind);
    uint64_t part = 0, addresses[kKinds] = {};
    Require(memtide_start_part(client_, places, kKinds, kNewParameter, &part, addresses), "part");
    const auto at = [&addresses](int kind) { return reinterpret_cast<float*>(addresses[kind]); };
    for (uint64_t i = 0; i < kElements; ++i) {
      const float gradient = at(kGradient)[i];
      at(kNewParameter)[i] = at(kParameter)[i] - (gradient > 0 ? 1.0f : -1.0f);
      at(kNewMomentum)[i] = at(kMomentum)[i] * 0.5f + gradient * 0.5f;
    }
    Require(memtide_end_part(client_, part, 1, 0), "end of part");
  }
  uint32_t Place(uint32_t set, int kind) const {
    return first_ + set * kKinds + static_cast<uint32_t>(kind);
  }
  uint64_t At(uint32_t set, int kind) const { return base_ + Place(set, kind) * kChunkBytes; }

  memtide_client* client_ = nullptr;
  uint32_t sets_;
  uint64_t base_ = 0;
  uint64_t step_ = 0;
  uint32_t first_ = 0;
  std::vector<uint64_t> ids_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  Job job(argv[1], argc == 3 ? static_cast<uint32_t>(strtoul(argv[2], nullptr, 10)) : 3);
  const std::string wrong = job.Check();
  if (!wrong.empty()) {
    printf("%s\n", wrong.c_str());
    return 1;
  }
  while (true) {
    printf("at %llu\n", static_cast<unsigned long long>(job.step()));
    fflush(stdout);
    job.Step();
  }
}
