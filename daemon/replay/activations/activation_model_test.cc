#include "daemon/replay/activations/activation_model.h"

#include <gtest/gtest.h>

#include <functional>

#include "daemon/replay/activations/testing/three_blocks.h"

namespace memtide {
namespace {

using testing::HasSubstr;

// The message that refuses the profile with this change; empty: it is accepted.
std::string RefusalOf(const std::function<void(v1::ActivationProfile*)>& change) {
  v1::ActivationProfile profile = ProfileOfThreeBlocks(Chunks(64));
  change(&profile);
  const auto model = ToActivationModel(SequenceOfThreeBlocks(), profile);
  return model.ok() ? "" : std::string(model.status().message());
}

TEST(ActivationModelTest, AProfileThatCannotBeIsRefusedWithTheBlocksNumber) {
  EXPECT_EQ(RefusalOf([](v1::ActivationProfile*) {}), "");
  const auto saved = [](v1::ActivationProfile* profile) {
    return profile->mutable_blocks(1)->mutable_saved(0);
  };
  EXPECT_THAT(RefusalOf([&](auto* profile) { saved(profile)->set_last_unpacked_moment(7); }),
              HasSubstr("block 1 of the profile unpacks in moment 7; the iteration has 7 moments"));
  EXPECT_THAT(RefusalOf([&](auto* profile) { saved(profile)->set_packed_moment(5); }),
              HasSubstr("block 1 of the profile packs in moment 5 and unpacks from moment 4 to 4"));
  EXPECT_THAT(RefusalOf([&](auto* profile) { saved(profile)->set_first_unpacked_moment(5); }),
              HasSubstr("the order of moments is"));
  EXPECT_THAT(RefusalOf([&](auto* profile) { saved(profile)->set_micro_batch(1u << 31); }),
              HasSubstr("block 1 of the profile has micro-batch 2147483648"));
  EXPECT_THAT(RefusalOf([&](auto* profile) { saved(profile)->set_size_bytes(~uint64_t{0}); }),
              HasSubstr("block 1 of the profile saves 18446744073709551615 bytes"));
  EXPECT_THAT(RefusalOf([&](auto* profile) {
                for (int i = 0; i < 2000; ++i) {
                  profile->mutable_blocks(1)->add_saved()->CopyFrom(*saved(profile));
                  profile->mutable_blocks(1)->mutable_saved(i)->set_size_bytes(uint64_t{1} << 50);
                }
              }),
              HasSubstr("block 1 of the profile saves more bytes than a node can have"));
  EXPECT_THAT(RefusalOf([&](auto* profile) { saved(profile)->clear_part(); }),
              HasSubstr("block 1 of the profile saves the unknown part 0"));
  EXPECT_THAT(RefusalOf([](auto* profile) { profile->mutable_blocks(1)->set_forward_ns(-1); }),
              HasSubstr("block 1 of the profile takes -1 ns"));
  EXPECT_THAT(RefusalOf([](auto* profile) {
                profile->mutable_blocks(1)->set_forward_without_attention_ns(20'000'000);
              }),
              HasSubstr("takes more time without attention than with it"));
  EXPECT_THAT(RefusalOf([](auto* profile) { profile->clear_blocks(); }), HasSubstr("has 0 blocks"));
  EXPECT_THAT(RefusalOf([](auto* profile) { profile->set_least_slots(~0u); }),
              HasSubstr("which cannot be"));
  EXPECT_THAT(RefusalOf([](auto* profile) { profile->set_iteration_moments(6); }),
              HasSubstr("of an iteration of 6 moments, and none of the 1 iterations"));
  EXPECT_THAT(RefusalOf([](auto* profile) {
                profile->add_others()->set_last_unpacked_moment(70);
                profile->mutable_others(0)->set_size_bytes(1);
              }),
              HasSubstr("outside of blocks, the profile unpacks in moment 70"));
}

TEST(ActivationModelTest, TheIterationIsTheLastOneWithTheProfilesNumberOfMoments) {
  AccessSequence sequence = SequenceOfThreeBlocks();
  for (PlayedMoment& moment : sequence.moments) moment.compute = std::chrono::milliseconds(1);
  sequence = Repeated(sequence, 0, 1);
  sequence.moments[7].compute = std::chrono::milliseconds(2);
  // A third iteration is of another shape.
  sequence.moments.emplace_back();
  sequence.iteration_ends.push_back(15);
  const auto model = ToActivationModel(sequence, ProfileOfThreeBlocks(Chunks(64)), 3);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->moments(), 7u);
  EXPECT_EQ(model->states.moments[0].compute, std::chrono::milliseconds(6));
  EXPECT_EQ(model->blocks[0].forward, std::chrono::milliseconds(30));
}

TEST(ActivationModelTest, TheTracesOwnActivationsAreLeftOut) {
  AccessSequence sequence = SequenceOfThreeBlocks();
  sequence.chunks.push_back({ChunkKind::kActivation, false});
  using Kind = ChunkEvent::Kind;
  sequence.moments[0].events.push_back({3, Kind::kAllocate});
  sequence.moments[0].events.push_back({3, Kind::kWrite});
  sequence.moments[5].events.push_back({3, Kind::kFree});
  const auto model = ToActivationModel(sequence, ProfileOfThreeBlocks(Chunks(64)));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->states.moments[0].events.size(), 1u);
  EXPECT_EQ(model->states.moments[5].events.size(), 1u);
}

TEST(ActivationModelTest, ForwardReachesFromTheEndOfTheBlockBefore) {
  v1::ActivationProfile profile = ProfileOfThreeBlocks(Chunks(64));
  // The block in the middle saves nothing but in its last moment; the first one began to save
  // there.
  for (v1::SavedBytes& saved : *profile.mutable_blocks(2)->mutable_saved()) {
    saved.set_packed_moment(3);
  }
  const auto model = ToActivationModel(SequenceOfThreeBlocks(), profile);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->blocks[2].calls[0].forward_begin, 2u);
  EXPECT_EQ(model->blocks[2].calls[0].forward_end, 3u);
}

}  // namespace
}  // namespace memtide
