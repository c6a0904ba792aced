// Measures digests and sums of memory on one core, against a loop that only reads the same memory.
//
//   hash_bench [--quick]
//
// 1 GiB, more than a cache keeps from one turn of a side to its next, is hashed in pieces of 1 MiB,
// each in a call of its own as a client makes it (memtide_hash_pieces), or as the mover sums what
// is written to SSD (base/content_sums.h).
#include <unistd.h>

#include <functional>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "base/check.h"
#include "base/content_hash.h"
#include "base/content_sums.h"
#include "base/shared_memory.h"
#include "bench/harness.h"
#include "bench/read_loop.h"
#include "client/memtide.h"

ABSL_FLAG(bool, quick, false, "fewer rounds");

namespace memtide {
namespace {

constexpr Bytes kPool = GiB(1), kPiece = MiB(1);
// A turn of one side: short, so that a load of other processes slows both.
constexpr uint64_t kTurn = 128, kTurns = kPool / kPiece / kTurn;

class Measurement {
 public:
  Measurement()
      : pool_(OrDie(SharedMemory::Create("bench-hash", kPool))),
        secret_(OrDie(HashSecret::Random())) {
    // Words of a Weyl sequence: no page is like another.
    auto* const words = reinterpret_cast<uint64_t*>(pool_.data());
    for (uint64_t i = 0; i < kPool.count() / sizeof(uint64_t); ++i) {
      words[i] = i * 0x9e3779b97f4a7c15;
    }
  }

  // Reads the whole pool with both sides, by turns.
  void Compare(Rounds* rounds) {
    Compare(rounds, "hash.pieces", [this](uint64_t turn) { Hash(turn); });
    Compare(rounds, "hash.sums", [this](uint64_t turn) { Sum(turn); });
  }

 private:
  void Compare(Rounds* rounds, const char* figure, const std::function<void(uint64_t)>& hash) {
    Duration of_limit{0}, of_product{0};
    for (uint64_t turn = 0; turn < kTurns; ++turn) {
      const auto limit = [&] { of_limit += TimeOf([&] { Read(turn); }); };
      // Pages that one side has read are still in the caches when the other one begins, so the
      // sides are half of the pool apart.
      const auto product = [&] {
        of_product += TimeOf([&] { hash((turn + kTurns / 2) % kTurns); });
      };
      if (rounds->product_first()) product();
      limit();
      if (!rounds->product_first()) product();
    }
    rounds->Add(figure, GigabytesPerSecond(kPool, of_limit), GigabytesPerSecond(kPool, of_product));
  }
  const char* Piece(uint64_t turn, uint64_t number) const {
    return pool_.data() + (kPiece * (turn * kTurn + number)).count();
  }
  void Read(uint64_t turn) {
    for (uint64_t i = 0; i < kTurn; ++i) sum_ += ReadLoop(Piece(turn, i), kPiece);
  }
  void Sum(uint64_t turn) {
    const ContentSums sums = SumsOf({Piece(turn, 0), (kPiece * kTurn).count()});
    MEMTIDE_CHECK(sums.size() == kTurn);
    sum_ += sums.back();
  }
  void Hash(uint64_t turn) {
    for (uint64_t i = 0; i < kTurn; ++i) {
      const memtide_span piece = {reinterpret_cast<uint64_t>(Piece(turn, i)), kPiece.count()};
      uint8_t digest[MEMTIDE_DIGEST_BYTES];
      const std::string& secret = secret_.bytes();
      const int code = memtide_hash_pieces(secret.data(), secret.size(), &piece, 1, digest);
      MEMTIDE_CHECK(code == MEMTIDE_OK) << memtide_last_error();
    }
  }

  const SharedMemory pool_;
  const HashSecret secret_;
  volatile uint64_t sum_ = 0;  // Keeps the reads.
};

void Measure() {
  Measurement measurement;
  RoundsOptions options;
  options.at_most = std::chrono::seconds(absl::GetFlag(FLAGS_quick) ? 3 : 10);
  Rounds rounds(options);
  while (rounds.Next()) measurement.Compare(&rounds);
  rounds.Print();
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  memtide::PreferProcess(getpid());
  memtide::PinThisThread(0);
  memtide::Measure();
}
