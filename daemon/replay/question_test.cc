#include "daemon/replay/question.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace memtide {
namespace {

using ::testing::HasSubstr;

void SetLink(v1::PlannedLink* link, double bytes_per_second) {
  link->set_bytes_per_second(bytes_per_second);
  link->set_latency_ns(10000);
}

// Eight layers of two million parameters, of 2 + 2 + 4 bytes each, on a device with half of that.
v1::PlanQuestion Asked() {
  v1::PlanQuestion question;
  v1::PlannedBlock* const block = question.add_blocks();
  block->set_name("layers");
  block->set_count(8);
  block->set_parameters(2 << 20);
  block->set_trained_parameters(2 << 20);
  block->set_forward_ns(1000000);
  block->set_recompute_ns(800000);
  block->set_attention_ns(100000);
  block->set_backward_ns(2000000);
  block->set_input_bytes(2 << 20);
  block->set_rest_bytes(8 << 20);
  block->set_recomputable(true);
  for (const auto& [kind, bytes] :
       {std::pair(v1::CHUNK_KIND_PARAMETER, 2), std::pair(v1::CHUNK_KIND_GRADIENT, 2),
        std::pair(v1::CHUNK_KIND_OPTIMIZER_STATE, 4)}) {
    v1::PlannedArena* const arena = question.add_arenas();
    arena->set_kind(kind);
    arena->set_bytes_per_parameter(bytes);
  }
  question.set_micro_batches(2);
  question.set_chunk_bytes(2 << 20);
  question.set_device_bytes(96 << 20);
  question.set_host_bytes(1 << 30);
  SetLink(question.mutable_to_device(), 10e9);
  SetLink(question.mutable_from_device(), 10e9);
  SetLink(question.mutable_drive_read(), 1e9);
  SetLink(question.mutable_drive_write(), 1e9);
  question.set_step_ns_per_parameter(0.01);
  question.set_replays(4);
  return question;
}

v1::PlanReply Replied(const v1::PlanQuestion& question) {
  absl::StatusOr<v1::PlanReply> reply = ReplyTo(question);
  MEMTIDE_CHECK(reply.ok()) << reply.status();
  return *std::move(reply);
}

TEST(QuestionTest, WhereAllFitsAnIterationTakesWhatItComputes) {
  v1::PlanQuestion question = Asked();
  question.set_device_bytes(1 << 30);
  const v1::PlanReply reply = Replied(question);
  EXPECT_NEAR(reply.compute_s(), 2 * 8 * 3e-3, 1e-9);
  EXPECT_NEAR(reply.step_s(), 8 * 0.01e-9 * (2 << 20), 1e-7);
  EXPECT_NEAR(reply.elapsed_s(), reply.compute_s() + reply.step_s(), 1e-6);
  EXPECT_LE(reply.to_device_bytes() + reply.from_device_bytes(), 2 * (2 << 20));
  EXPECT_EQ(reply.resident_bytes(), 128 << 20);
}

TEST(QuestionTest, FurtherMicroBatchesTakeAsLongAsThoseThatWerePlayed) {
  v1::PlanQuestion question = Asked();
  question.set_device_bytes(1 << 30);
  question.set_micro_batches(100);
  const v1::PlanReply reply = Replied(question);
  EXPECT_NEAR(reply.compute_s(), 100 * 8 * 3e-3, 1e-6);
  EXPECT_NEAR(reply.elapsed_s(), reply.compute_s() + reply.step_s(), 1e-3);
}

TEST(QuestionTest, ABlockThatIsComputedAgainTakesWhatItNeedsOfItsForwardPass) {
  v1::PlanQuestion question = Asked();
  question.set_device_bytes(1 << 30);
  question.set_activations(v1::ACTIVATION_CHOICE_RECOMPUTE);
  // The last block keeps.
  EXPECT_NEAR(Replied(question).recompute_s(), 2 * 7 * 0.8e-3, 1e-9);
}

TEST(QuestionTest, StatesThatDoNotFitCrossTheLink) {
  const v1::PlanReply reply = Replied(Asked());
  EXPECT_GT(reply.to_device_bytes(), 0);
  EXPECT_LT(reply.resident_bytes(), 128 << 20);
  EXPECT_EQ(reply.drive_read_bytes() + reply.drive_written_bytes(), 0);
}

TEST(QuestionTest, AStepOnTheHostBringsNoStateToTheDevice) {
  v1::PlanQuestion question = Asked();
  question.set_device_bytes(80 << 20);
  question.set_activations(v1::ACTIVATION_CHOICE_RECOMPUTE);
  const double on_device = Replied(question).to_device_bytes();
  question.set_step_on_host(true);
  const v1::PlanReply reply = Replied(question);
  EXPECT_LT(reply.to_device_bytes(), on_device - (16 << 20));
  // Weights come anew in each iteration, and what only the step uses does not come at all.
  EXPECT_LE(reply.resident_bytes(), 32 << 20);
}

// Without a device: its host memory computes, and has all states and activations.
v1::PlanQuestion OnHost(bool in_parts) {
  v1::PlanQuestion question = Asked();
  question.set_device_bytes(0);
  question.set_activations(v1::ACTIVATION_CHOICE_KEEP);
  question.set_step_on_host(true);
  question.set_step_in_backward(in_parts);
  question.set_step_ns_per_parameter(0.5);
  return question;
}

TEST(QuestionTest, PartsOfAStepAreHiddenByPassesButForTheLast) {
  const v1::PlanReply whole = Replied(OnHost(false)), parts = Replied(OnHost(true));
  EXPECT_NEAR(parts.compute_s(), whole.compute_s(), 1e-9);
  EXPECT_NEAR(parts.step_s(), whole.step_s(), 1e-6);
  EXPECT_NEAR(whole.elapsed_s(), whole.compute_s() + whole.step_s(), 1e-6);
  // The first layer's gradient is complete when no pass is left to hide its part of the step.
  EXPECT_NEAR(parts.elapsed_s(), parts.compute_s() + parts.step_s() / 8, 1e-6);
  v1::PlanQuestion foreseen = OnHost(true);
  foreseen.set_foreseen(true);
  EXPECT_NEAR(Replied(foreseen).elapsed_s(), parts.elapsed_s(), 1e-6);
}

TEST(QuestionTest, PartsOfAStepNeedRoomForShadowChunks) {
  v1::PlanQuestion whole = OnHost(false), parts = OnHost(true);
  // Weights of two bytes and states of four.
  EXPECT_EQ(Replied(parts).chunk_bytes_at_most() - Replied(whole).chunk_bytes_at_most(), 96 << 20);
  EXPECT_EQ(Replied(parts).drive_written_bytes(), 0);
  // All fits but the shadow chunks: 128 MiB of states, and 80 of activations.
  for (v1::PlanQuestion* const question : {&whole, &parts}) question->set_host_bytes(216 << 20);
  EXPECT_EQ(Replied(whole).drive_written_bytes(), 0);
  EXPECT_GT(Replied(parts).drive_written_bytes(), 8 << 20);
  EXPECT_LT(Replied(parts).drive_written_bytes(), 96 << 20);
  parts.set_foreseen(true);
  EXPECT_GT(Replied(parts).drive_written_bytes(), 8 << 20);
}

TEST(QuestionTest, WithoutRoomOnTheHostTheDriveIsUsed) {
  v1::PlanQuestion question = Asked();
  question.set_host_bytes(16 << 20);
  EXPECT_GT(Replied(question).drive_read_bytes(), 0);
}

TEST(QuestionTest, WhereNothingFitsTheReplySaysWhatWould) {
  v1::PlanQuestion question = Asked();
  question.set_device_bytes(8 << 20);
  const v1::PlanReply reply = Replied(question);
  EXPECT_EQ(reply.elapsed_s(), 0);
  question.set_device_bytes(reply.plan().least_budget_bytes());
  EXPECT_GT(Replied(question).elapsed_s(), 0);
}

TEST(QuestionTest, TheShortSearchPlaysOnePlan) {
  v1::PlanQuestion question = Asked();
  question.set_replays(0);
  EXPECT_EQ(Replied(question).plan().replays(), 1u);
}

TEST(QuestionTest, ASystemThatForeseesAllTransfersNeedsNoReplayAndWaitsNoLonger) {
  v1::PlanQuestion question = Asked();
  question.set_replays(40);
  const double played = Replied(question).elapsed_s();
  question.set_foreseen(true);
  const v1::PlanReply reply = Replied(question);
  EXPECT_EQ(reply.plan().replays(), 0u);
  EXPECT_GE(reply.elapsed_s(), reply.compute_s() + reply.step_s() - 1e-9);
  EXPECT_LT(reply.elapsed_s(), 1.05 * played);
  EXPECT_GT(reply.to_device_bytes(), 0);
}

TEST(QuestionTest, QuestionsAreAnsweredInOrderWithTheErrorsOfEach) {
  v1::PlanQuestions questions;
  *questions.add_questions() = Asked();
  *questions.add_questions() = Asked();
  questions.mutable_questions(1)->mutable_blocks(0)->set_attention_ns(int64_t{1} << 40);
  *questions.add_questions() = Asked();
  const v1::PlanReplies replies = ReplyToAll(questions, 2);
  ASSERT_EQ(replies.replies_size(), 3);
  EXPECT_EQ(replies.replies(0).error(), "");
  EXPECT_THAT(replies.replies(1).error(), HasSubstr("\"layers\""));
  EXPECT_EQ(replies.replies(2).elapsed_s(), replies.replies(0).elapsed_s());
}

TEST(QuestionTest, WhatCannotBeIsRefused) {
  v1::PlanQuestion question = Asked();
  question.set_chunk_bytes(0);
  EXPECT_EQ(ReplyTo(question).status().code(), absl::StatusCode::kInvalidArgument);
  question = Asked();
  question.mutable_to_device()->set_bytes_per_second(0);
  EXPECT_EQ(ReplyTo(question).status().code(), absl::StatusCode::kInvalidArgument);
  question = Asked();
  question.mutable_blocks(0)->set_trained_parameters(4 << 20);
  EXPECT_EQ(ReplyTo(question).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(ReadQuestions("{\"questions\": 7}").ok());
}

}  // namespace
}  // namespace memtide
