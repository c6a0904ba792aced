// A session of the load test that behaves well: it uses the client library as a training does,
// verifies every byte that it reads, and says what happens (session_report.h) until SIGTERM.
//
// Arguments: SOCKET_DIR UID GID SEED PAUSE_MS KIND [NAME]. Kinds: "fixed" and "elastic" have a job
// without a name, with shares of a fixed size or elastic ones; "steps" resumes the job NAME, and
// computes and commits steps.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "client/memtide.h"
#include "tests/load/session_report.h"

namespace memtide {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kChunkBytes = 2 * kMiB;
constexpr uint64_t kWords = kChunkBytes / sizeof(uint64_t);
constexpr uint64_t kElements = kChunkBytes / sizeof(float);
// Calls that the daemon delays for longer fail. The test's bound is far below.
constexpr int kPatienceMs = 120'000;
// A named job's time to live: longer than any pause between its processes.
constexpr uint32_t kTimeToLiveS = 12;

struct Arguments {
  std::string socket_dir;
  uint64_t seed = 0;
  uint32_t pause_ms = 0;
  std::string kind, name;
};

// A client of the library whose calls are timed and reported. Once the session is lost, the process
// ends.
class Client {
 public:
  Client(const Arguments& arguments, memtide_options options) {
    options.struct_bytes = sizeof(options);
    options.socket_dir = arguments.socket_dir.c_str();
    options.program = "load";
    options.chunk_bytes = kChunkBytes;
    options.address_bytes = uint64_t{1} << 30;
    if (Call("open", [&] { return memtide_open(&options, &client_); }) != MEMTIDE_OK) exit(4);
    memtide_properties properties = {};
    properties.struct_bytes = sizeof(properties);
    Call("properties", [&] { return memtide_get_properties(client_, &properties); });
    base_ = static_cast<char*>(properties.base);
    report_.Say("opened");
  }
  ~Client() { memtide_close(client_); }

  int Call(const char* name, const std::function<int()>& call) {
    const int code = report_.Timed(name, call, memtide_last_error);
    if (code == MEMTIDE_UNAVAILABLE || code == MEMTIDE_UNAUTHENTICATED) _exit(3);
    return code;
  }
  // Leases the places, calls `use`, and releases them. Returns the code of the lease.
  int With(const std::vector<uint32_t>& places, int access, const std::function<void()>& use) {
    const char* const name = access == MEMTIDE_READ ? "read" : "write";
    const int code = Call(name, [&] {
      return memtide_acquire(client_, places.data(), places.size(), access, kPatienceMs);
    });
    if (code != MEMTIDE_OK) return code;
    use();
    Call("release", [&] { return memtide_release(client_, places.data(), places.size()); });
    return code;
  }

  memtide_client* get() const { return client_; }
  char* At(uint32_t place) const { return base_ + place * kChunkBytes; }
  SessionReport& report() { return report_; }
  // `reads_zero`: so does a process that goes on after its session has ended (decision 41).
  void Wrong(const std::string& message, bool reads_zero) {
    report_.Say((reads_zero ? "zeros " : "wrong ") + message);
    _exit(5);
  }

 private:
  SessionReport report_;
  memtide_client* client_ = nullptr;
  char* base_ = nullptr;
};

// Uses chunks of its own in any order, and knows what each must hold.
class ChunkUser {
 public:
  ChunkUser(const Arguments& arguments, Client* client, uint32_t most_chunks)
      : seed_(arguments.seed), most_chunks_(most_chunks), client_(*client), random_(seed_) {}

  void UseOne() {
    if (contents_.size() < 2) return Allocate();
    switch (random_() % 16) {
      case 0:
        return Allocate();
      case 1:
        return Free();
      case 2:
        return Discard();
      case 3:
      case 4:
      case 5:
        return Evict();
      case 6:
        client_.Call("flush", [&] { return memtide_flush(client_.get()); });
        return;
      case 7:
        client_.Call("iterate", [&] { return memtide_end_iteration(client_.get()); });
        return;
      case 8:
      case 9:
      case 10:
        return Write();
      default:
        return Read();
    }
  }

 private:
  // The content of a chunk: the stamp of a write, zeros, or (nothing) arbitrary bytes.
  using Content = std::optional<uint64_t>;
  static constexpr uint64_t kZeros = 0;

  std::vector<uint32_t> Pick() {
    auto it = std::next(contents_.begin(), random_() % contents_.size());
    std::vector<uint32_t> places = {it->first};
    if (random_() % 3 == 0 && ++it != contents_.end()) places.push_back(it->first);
    return places;
  }
  void Allocate() {
    if (contents_.size() + 2 > most_chunks_) return Free();
    const bool undefined = random_() % 2 == 0;
    uint32_t first = 0;
    const int code = client_.Call("allocate", [&] {
      const auto allocate = undefined ? memtide_allocate_undefined : memtide_allocate;
      return allocate(client_.get(), MEMTIDE_OTHER, 2, &first);
    });
    if (code != MEMTIDE_OK) return;
    const Content fresh = undefined ? Content() : Content(kZeros);
    contents_[first] = contents_[first + 1] = fresh;
  }
  void Free() {
    const uint32_t place = Pick()[0];
    const int code = client_.Call("free", [&] { return memtide_free(client_.get(), place, 1); });
    if (code == MEMTIDE_OK) contents_.erase(place);
  }
  void Discard() {
    const std::vector<uint32_t> places = Pick();
    const int code = client_.Call(
        "discard", [&] { return memtide_discard(client_.get(), places.data(), places.size()); });
    if (code != MEMTIDE_OK) return;
    for (const uint32_t place : places) contents_[place] = Content();
  }
  void Evict() {
    const std::vector<uint32_t> places = Pick();
    client_.Call("evict",
                 [&] { return memtide_evict(client_.get(), places.data(), places.size()); });
  }
  void Write() {
    const std::vector<uint32_t> places = Pick();
    client_.With(places, MEMTIDE_WRITE, [&] {
      for (const uint32_t place : places) {
        const uint64_t stamp = (seed_ << 32) + (++writes_ << 8) + 1;
        auto* words = reinterpret_cast<uint64_t*>(client_.At(place));
        for (uint64_t i = 0; i < kWords; ++i) words[i] = stamp * (i + 1);
        contents_[place] = stamp;
      }
    });
  }
  void Read() {
    const std::vector<uint32_t> places = Pick();
    client_.With(places, MEMTIDE_READ, [&] {
      for (const uint32_t place : places) Verify(place);
    });
  }
  void Verify(uint32_t place) {
    const Content& content = contents_[place];
    if (!content.has_value()) return;
    const auto* words = reinterpret_cast<const uint64_t*>(client_.At(place));
    uint64_t difference = 0;
    for (uint64_t i = 0; i < kWords; ++i) difference |= words[i] ^ (*content * (i + 1));
    if (difference == 0) return;
    uint64_t i = 0;
    while (words[i] == *content * (i + 1)) ++i;
    client_.Wrong("the chunk at place " + std::to_string(place) + " has " +
                      std::to_string(words[i]) + " in word " + std::to_string(i) + ", and " +
                      std::to_string(*content * (i + 1)) + " was written",
                  words[i] == 0);
  }

  const uint64_t seed_;
  const uint32_t most_chunks_;
  Client& client_;
  std::mt19937_64 random_;
  std::map<uint32_t, Content> contents_;
  uint64_t writes_ = 0;
};

// Computes and commits steps of a named job. After step n every parameter is -n (Lion with a rate
// of 1), and every momentum is a function of n: a step that is lost, or counts twice, shows.
class Trainer {
 public:
  explicit Trainer(Client* client) : client_(*client) {
    char* manifest = nullptr;
    size_t bytes = 0;
    client_.Call("committed",
                 [&] { return memtide_committed(client_.get(), &step_, &manifest, &bytes); });
    ids_.resize(bytes / sizeof(uint64_t));
    memcpy(ids_.data(), manifest, ids_.size() * sizeof(uint64_t));
    memtide_free_text(manifest);
    if (ids_.empty()) {
      ready_ = Begin();
    } else {
      const auto count = static_cast<uint32_t>(ids_.size());
      ready_ = client_.Call("attach", [&] {
        return memtide_attach(client_.get(), ids_.data(), count, &first_);
      }) == MEMTIDE_OK;
      if (ready_) ReadGradient();
    }
    if (ready_) Verify();
    if (ready_) SayStep();
  }

  bool ready() const { return ready_; }

  // Makes the next step, or none of it: a step that was refused is tried again.
  void Step() {
    const int wrote = client_.With({Place(kGradient)}, MEMTIDE_WRITE, [&] {
      auto* gradient = reinterpret_cast<float*>(client_.At(Place(kGradient)));
      for (uint64_t i = 0; i < kElements; ++i) gradient[i] = 2;
    });
    if (wrote != MEMTIDE_OK || !Compute() || !Commit()) return;
    SayStep();
    if (step_ % 4 == 0) Verify();
  }

 private:
  // kNewParameter and kNewMomentum are shadow chunks.
  enum { kGradient, kParameter, kMomentum, kNewParameter, kNewMomentum, kChunks };

  bool Begin() {
    ids_.resize(kChunks);
    return client_.Call("allocate",
                        [&] {
                          return memtide_allocate(client_.get(), MEMTIDE_OTHER, kChunks, &first_);
                        }) == MEMTIDE_OK &&
           client_.Call("ids", [&] {
             return memtide_chunk_ids(client_.get(), first_, kChunks, ids_.data());
           }) == MEMTIDE_OK;
  }
  uint32_t Place(int kind) const { return first_ + static_cast<uint32_t>(kind); }
  uint64_t Address(int kind) const { return reinterpret_cast<uint64_t>(client_.At(Place(kind))); }
  void SayStep() { client_.report().Say("at " + std::to_string(step_)); }

  // The last process may have died while it wrote the gradient, which is refused then.
  void ReadGradient() {
    const uint32_t place = Place(kGradient);
    const int code = memtide_acquire(client_.get(), &place, 1, MEMTIDE_READ, kPatienceMs);
    if (code == MEMTIDE_DATA_LOSS) return client_.report().Say("torn");
    if (code != MEMTIDE_OK) {
      client_.Call("read", [code] { return code; });
      return;
    }
    RequireAll(kGradient, 2);
    client_.Call("release", [&] { return memtide_release(client_.get(), &place, 1); });
  }
  void Verify() {
    float momentum = 0;
    for (uint64_t i = 0; i < step_; ++i) momentum = momentum * 0.5f + 1;
    client_.With({Place(kParameter), Place(kMomentum)}, MEMTIDE_READ, [&] {
      RequireAll(kParameter, -static_cast<float>(step_));
      RequireAll(kMomentum, momentum);
    });
  }
  void RequireAll(int kind, float wanted) {
    const auto* values = reinterpret_cast<const float*>(Address(kind));
    for (uint64_t i = 0; i < kElements; ++i) {
      if (values[i] == wanted) continue;
      client_.Wrong("at step " + std::to_string(step_) + " element " + std::to_string(i) +
                        " of chunk " + std::to_string(kind) + " is " + std::to_string(values[i]) +
                        ", not " + std::to_string(wanted),
                    values[i] == 0);
    }
  }
  bool Compute() {
    uint32_t places[kChunks];
    for (int kind = 0; kind < kChunks; ++kind) places[kind] = Place(kind);
    uint64_t part = 0, addresses[kChunks] = {};
    const int began = client_.Call("part", [&] {
      return memtide_start_part(client_.get(), places, kChunks, kNewParameter, &part, addresses);
    });
    if (began != MEMTIDE_OK) return false;
    const auto at = [&addresses](int kind) { return reinterpret_cast<float*>(addresses[kind]); };
    for (uint64_t i = 0; i < kElements; ++i) {
      const float gradient = at(kGradient)[i];
      at(kNewParameter)[i] = at(kParameter)[i] - (gradient > 0 ? 1.0f : -1.0f);
      at(kNewMomentum)[i] = at(kMomentum)[i] * 0.5f + gradient * 0.5f;
    }
    return client_.Call("end of part",
                        [&] { return memtide_end_part(client_.get(), part, 1, 0); }) == MEMTIDE_OK;
  }
  bool Commit() {
    const std::vector<uint32_t> places = {Place(kParameter), Place(kMomentum)};
    const std::vector<uint32_t> fresh = {Place(kNewParameter), Place(kNewMomentum)};
    const int code = client_.Call("commit", [&] {
      return memtide_commit(client_.get(), step_ + 1, places.data(), fresh.data(), places.size(),
                            nullptr, nullptr, 0, ids_.data(), ids_.size() * sizeof(uint64_t));
    });
    if (code == MEMTIDE_OK) ++step_;
    return code == MEMTIDE_OK;
  }

  Client& client_;
  uint64_t step_ = 0;
  uint32_t first_ = 0;
  std::vector<uint64_t> ids_;
  bool ready_ = false;
};

int Run(const Arguments& arguments) {
  memtide_options options = {};
  options.ssd_share_bytes = 48 * kMiB;
  uint32_t most_chunks = 24;
  if (arguments.kind == "fixed") {
    options.host_share_bytes = 10 * kMiB;
    options.ssd_share_bytes = 24 * kMiB;
    most_chunks = 10;
  } else if (arguments.kind == "steps") {
    options.host_share_bytes = 16 * kMiB;
    options.ssd_share_bytes = 24 * kMiB;
    options.job_name = arguments.name.c_str();
    options.time_to_live_s = kTimeToLiveS;
  }
  Client client(arguments, options);
  std::mt19937_64 random(arguments.seed);
  const auto pause = [&] {
    Pause(std::chrono::milliseconds(random() % (2 * arguments.pause_ms + 1)));
  };
  if (arguments.kind == "steps") {
    Trainer trainer(&client);
    if (!trainer.ready()) return 4;
    for (; !MustEnd(); pause()) trainer.Step();
  } else {
    ChunkUser user(arguments, &client, most_chunks);
    for (; !MustEnd(); pause()) user.UseOne();
  }
  return 0;
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  if (argc != 7 && argc != 8) return 2;
  const auto number = [argv](int i) { return strtoull(argv[i], nullptr, 10); };
  memtide::HandleTermination();
  if (!memtide::BecomeUser(static_cast<uint32_t>(number(2)), static_cast<uint32_t>(number(3)))) {
    return 2;
  }
  return memtide::Run(
      {argv[1], number(4), static_cast<uint32_t>(number(5)), argv[6], argc == 8 ? argv[7] : ""});
}
