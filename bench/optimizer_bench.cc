// Measures AdamW's kernel on two threads, against a loop over the same memory that only adds.
//
//   optimizer_bench [--quick]
//
// The kernel steps 64 M parameters out of place: 1.75 GiB in fp32, and as much with bf16 gradients
// and parameters beside an fp32 master, in the same memory. Each thread is pinned to its own CPU.
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "base/shared_memory.h"
#include "bench/harness.h"
#include "bench/step_loop.h"
#include "daemon/optimizer/adam.h"

ABSL_FLAG(bool, quick, false, "fewer rounds");

namespace memtide {
namespace {

using optimizer::Format;
using optimizer::Input;
using optimizer::Output;

constexpr size_t kElements = size_t{64} << 20;
constexpr size_t kTurn = kElements / 8, kTurns = kElements / kTurn;
constexpr int kThreads = 2;

using Work = std::function<void(size_t begin, size_t end)>;

// Runs `work` on the elements of a turn, half of them on each CPU.
void OnAllThreads(const Work& work) {
  const size_t middle = kTurn / kThreads;
  PinThisThread(1);  // The new thread inherits this; on a busy CPU it would start late.
  std::thread other([&] { work(middle, kTurn); });
  PinThisThread(0);
  work(0, middle);
  other.join();
}

// The arrays of all turns in one piece of memory, like the chunks of a pool, so that both forms use
// the same pages. Arrays of 64 M elements are no alternative: with arrays 256 MiB apart, every loop
// was a quarter slower on Zen 3 than with other distances.
class Memory {
 public:
  Memory() : memory_(OrDie(SharedMemory::Create("bench-optimizer", kArray * 7 * kTurns))) {
    // No zeros or denormals, with which a step or a sum takes another time.
    for (size_t turn = 0; turn < kTurns; ++turn) {
      for (size_t i = 0; i < 4 * kTurn; ++i) {
        const float number = 0.001f + static_cast<float>(i % 1000);
        At(turn, 0)[i] = i < kTurn ? TwoBfloat16s(number) : number;
      }
    }
  }

  StepArrays Arrays(size_t turn, bool has_copy) const {
    const auto at = [&](size_t array) { return At(turn, array); };
    StepArrays arrays = {at(0), at(1), at(2), at(3), at(4), at(5), at(6)};
    // bf16 gradients use half of the gradient's array; the copy is in its other half.
    if (has_copy) arrays.copy = reinterpret_cast<uint16_t*>(at(0)) + kTurn;
    return arrays;
  }

 private:
  static constexpr Bytes kArray = Bytes(kTurn * sizeof(float));

  // A float near `number`, whose two halves are both bf16 numbers near it.
  static float TwoBfloat16s(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    bits = (bits & 0xffff0000) | bits >> 16;
    std::memcpy(&number, &bits, sizeof(bits));
    return number;
  }

  float* At(size_t turn, size_t array) const {
    return reinterpret_cast<float*>(memory_.data()) + (turn * 7 + array) * kTurn;
  }

  const SharedMemory memory_;
};

// One AdamW step over elements [begin, end).
void Step(const StepArrays& arrays, size_t begin, size_t end) {
  const size_t size = end - begin;
  const bool has_copy = arrays.copy != nullptr;
  const auto read = [&](const float* array) {
    return Input(array + begin, size, Format::kFloat32);
  };
  const auto write = [&](float* array) { return Output(array + begin, size, Format::kFloat32); };
  optimizer::StepSpans spans;
  if (has_copy) {
    const auto* const gradient = static_cast<const uint16_t*>(arrays.gradient);
    spans.gradient = Input(gradient + begin, size, Format::kBfloat16);
    spans.copy = Output(arrays.copy + begin, size, Format::kBfloat16);
  } else {
    spans.gradient = read(static_cast<const float*>(arrays.gradient));
  }
  spans.parameter = read(arrays.parameter);
  spans.new_parameter = write(arrays.new_parameter);
  optimizer::AdamOptions options;
  options.decay = optimizer::WeightDecay::kDecoupled;
  options.weight_decay = 0.01;
  optimizer::AdamStep(options, 10, spans, {read(arrays.momentum), read(arrays.variance)},
                      {write(arrays.new_momentum), write(arrays.new_variance)});
}

// Runs both sides by turns of a few elements, so that a short load of other processes slows both.
void Compare(Rounds* rounds, const std::string& figure, const Memory& memory, bool has_copy) {
  constexpr size_t kBytesPerElement = 28;  // Read + written: 16 + 12 in fp32, 14 + 14 with bf16.
  Duration of_limit{0}, of_product{0};
  for (size_t turn = 0; turn < kTurns; ++turn) {
    const StepArrays arrays = memory.Arrays(turn, has_copy);
    const auto take_turn = [](const Work& side) { return TimeOf([&] { OnAllThreads(side); }); };
    const auto limit = [&] {
      of_limit += take_turn([&](size_t from, size_t to) { StepLoop(arrays, from, to); });
    };
    const auto product = [&] {
      of_product += take_turn([&](size_t from, size_t to) { Step(arrays, from, to); });
    };
    if (rounds->product_first()) product();
    limit();
    if (!rounds->product_first()) product();
  }
  const Bytes moved = Bytes(kElements * kBytesPerElement);
  rounds->Add(figure, GigabytesPerSecond(moved, of_limit), GigabytesPerSecond(moved, of_product));
}

void Measure() {
  const Memory memory;
  RoundsOptions options;
  options.at_most = std::chrono::seconds(absl::GetFlag(FLAGS_quick) ? 6 : 20);
  Rounds rounds(options);
  while (rounds.Next()) {
    Compare(&rounds, "optimizer.adamw", memory, false);
    Compare(&rounds, "optimizer.adamw_bf16", memory, true);
  }
  rounds.Print();
}

}  // namespace
}  // namespace memtide

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  memtide::PreferProcess(getpid());
  memtide::Measure();
}
