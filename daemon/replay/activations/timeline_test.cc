#include "daemon/replay/activations/timeline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "daemon/replay/activations/testing/three_blocks.h"

namespace memtide {
namespace {

Candidate AllKept() { return {{kKeepAll, kKeepAll, kKeepAll}, kKeep}; }

ReplayOptions DeviceWithLink(double chunks_a_second) {
  ReplayOptions options;
  options.device_slots = 1;
  options.host_slots = 4096;
  options.links.to_device.bytes_per_second = chunks_a_second * (2 << 20);
  options.links.from_device.bytes_per_second = chunks_a_second * (2 << 20);
  return options;
}

TEST(TimelineTest, WithoutTransfersItIsTheComputing) {
  const ActivationModel model = ThreeBlocks(Chunks(64));
  Timeline timeline(model, DeviceWithLink(100));
  EXPECT_NEAR(timeline.SecondsOf(AllKept()), 0.095, 1e-9);
  EXPECT_NEAR(timeline.SecondsOf({{{kKeep, kKeep, kAgain}, {kKeep, kAgain, kAgain}, kKeepAll}}),
              0.095 + 0.018, 1e-9);
}

TEST(TimelineTest, PartsAreComputedBesideTheOthersUntilTheIterationEnds) {
  ActivationModel model = ThreeBlocks(Chunks(64));
  PlayedMoment part = model.states.moments.back();
  model.states.moments.back().is_part = true;
  EXPECT_NEAR(Timeline(model, DeviceWithLink(1e6)).SecondsOf(AllKept()), 0.095, 1e-4);
  // The same part after the first moment, and no other.
  std::swap(model.states.moments[1].compute, part.compute);
  model.states.moments[1].is_part = true;
  model.states.moments.back().compute = Duration(0);
  EXPECT_NEAR(Timeline(model, DeviceWithLink(1e6)).SecondsOf(AllKept()), 0.080, 1e-4);
  // Two at the end, of which the second one waits for the first.
  for (const size_t last : {5, 6}) {
    model.states.moments[last].is_part = true;
    model.states.moments[last].compute = std::chrono::milliseconds(7);
  }
  EXPECT_NEAR(Timeline(model, DeviceWithLink(1e6)).SecondsOf(AllKept()), 0.074, 1e-4);
}

TEST(TimelineTest, WhatTheBudgetDoesNotAllowTakesForever) {
  const ActivationModel model = ThreeBlocks(Chunks(18));
  Timeline timeline(model, DeviceWithLink(100));
  EXPECT_TRUE(std::isinf(timeline.SecondsOf(AllKept())));
}

TEST(TimelineTest, ASlowLinkShowsAndAFastOneHides) {
  const Candidate first_moved{{{kMove, kMove, kMove}, kKeepAll, kKeepAll}, kKeep};
  ActivationModel model = ThreeBlocks(Chunks(18));
  model.fixed_slots = 4;
  // 5 chunks leave and return while the other blocks compute.
  EXPECT_LT(Timeline(model, DeviceWithLink(10000)).SecondsOf(first_moved), 0.1);
  // 10 chunks pass a link of 10 chunks a second.
  EXPECT_GT(Timeline(model, DeviceWithLink(10)).SecondsOf(first_moved), 0.5);
}

TEST(TimelineTest, AnEarlyBlockHidesItsMoveAndTheLastOneDoesNot) {
  ActivationModel model = ThreeBlocks(Chunks(18));
  model.fixed_slots = 4;
  Timeline timeline(model, DeviceWithLink(100));
  EXPECT_NEAR(timeline.SecondsOf({{{kMove, kKeep, kKeep}, kKeepAll, kKeepAll}, kKeep}), 0.095,
              1e-9);
  // A chunk leaves in 10 ms and comes back in 10 ms, and backward begins with it.
  EXPECT_NEAR(timeline.SecondsOf({{kKeepAll, kKeepAll, {kMove, kKeep, kKeep}}, kKeep}), 0.115,
              1e-9);
}

TEST(TimelineTest, SlotsThatStatesLeaveFreeHoldWhatIsMoved) {
  ActivationModel model = ThreeBlocks(Chunks(64));
  model.fixed_slots = 40;
  Timeline timeline(model, DeviceWithLink(1));
  EXPECT_NEAR(timeline.SecondsOf({{{kMove, kMove, kMove}, kKeepAll, kKeepAll}, kKeep}), 0.095,
              1e-9);
}

TEST(TimelineTest, ADiskServesReadsAndWritesInTurn) {
  ActivationModel model = ThreeBlocks(Chunks(18));
  model.fixed_slots = 4;
  ReplayOptions options = DeviceWithLink(1000);
  options.device_slots = 0;
  options.links.disk_read.bytes_per_second = options.links.disk_write.bytes_per_second = 2 << 20;
  const Candidate all_moved{{{kMove, kMove, kMove}, {kMove, kMove, kMove}, {kMove, kMove, kMove}},
                            kMove};
  // 15 chunks are written and read at one a second; one or two stay.
  EXPECT_GT(Timeline(model, options).SecondsOf(all_moved), 26);
}

}  // namespace
}  // namespace memtide
