// The questions that memtide asks a GPU that it meets, over the fake CUDA, with a real helper
// process.
#include "daemon/device/first_use/first_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "base/cuda/cuda.h"
#include "base/cuda/fake/fake_cuda.h"
#include "base/cuda/fake/importer_process.h"

namespace memtide {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const SharedFakeCuda shared_fake_cuda("delay_us=20");

// Settings and faults of the fake for the processes that are started during its life.
class HelperSettings {
 public:
  explicit HelperSettings(const std::string& more, const std::string& faults = "")
      : before_(getenv("MEMTIDE_FAKE_CUDA")) {
    setenv("MEMTIDE_FAKE_CUDA", (before_ + "," + more).c_str(), 1);
    setenv("MEMTIDE_FAKE_CUDA_FAULTS", faults.c_str(), 1);
  }
  ~HelperSettings() {
    setenv("MEMTIDE_FAKE_CUDA", before_.c_str(), 1);
    unsetenv("MEMTIDE_FAKE_CUDA_FAULTS");
  }

 private:
  const std::string before_;
};

CudaDeviceFacts Facts() { return CudaDevices()->front(); }

MeetGpuOptions Options(const std::string& directory) {
  MeetGpuOptions options;
  options.program = getenv("GPU_HELPER");
  if (!directory.empty()) options.directory = std::string(getenv("TEST_TMPDIR")) + "/" + directory;
  options.driver = "570.1";
  return options;
}

TEST(FirstUseTest, AGpuThatDoesAllAnswersYes) {
  const auto answers = MeetGpu(Facts(), Options(""));
  ASSERT_TRUE(answers.ok()) << answers.status();
  EXPECT_THAT(answers->failures(), IsEmpty());
  EXPECT_TRUE(answers->descriptors());
  EXPECT_TRUE(answers->legacy_ipc());
  EXPECT_TRUE(answers->maps_under_work());
  EXPECT_GT(answers->longest_mapping_ms(), 0);
  EXPECT_GT(answers->copy_bytes_per_second(), 1e6);
  EXPECT_GT(answers->copy_bytes_per_second_beside_work(), 1e6);
  EXPECT_GT(answers->pinned_bytes_per_second(), 1e6);
}

TEST(FirstUseTest, AGpuIsAskedOnceForEachDriver) {
  MeetGpuOptions options = Options("once/gpus");
  ASSERT_TRUE(MeetGpu(Facts(), options).ok());
  options.program = "/bin/false";
  const auto of_file = MeetGpu(Facts(), options);
  ASSERT_TRUE(of_file.ok()) << of_file.status();
  EXPECT_TRUE(of_file->descriptors());
  EXPECT_EQ(of_file->driver(), "570.1");
  options.driver = "580.1";
  EXPECT_TRUE(absl::IsUnavailable(MeetGpu(Facts(), options).status()));
}

TEST(FirstUseTest, FailuresAreAskedAgain) {
  MeetGpuOptions options = Options("again");
  {
    const HelperSettings settings("import=no");
    EXPECT_FALSE(MeetGpu(Facts(), options)->descriptors());
  }
  EXPECT_TRUE(MeetGpu(Facts(), options)->descriptors());
}

TEST(FirstUseTest, EachAnswerCanBeNo) {
  {
    const HelperSettings settings("import=no");
    const v1::GpuAnswers answers = *MeetGpu(Facts(), Options(""));
    EXPECT_FALSE(answers.descriptors());
    EXPECT_TRUE(answers.legacy_ipc());
    EXPECT_TRUE(answers.maps_under_work());
    EXPECT_THAT(answers.failures(), ElementsAre(HasSubstr("passing memory by descriptor: cuMem")));
  }
  {
    const HelperSettings settings("open_ipc=no");
    const v1::GpuAnswers answers = *MeetGpu(Facts(), Options(""));
    EXPECT_TRUE(answers.descriptors());
    EXPECT_FALSE(answers.legacy_ipc());
  }
  {
    const HelperSettings settings("maps_under_work=no");
    const v1::GpuAnswers answers = *MeetGpu(Facts(), Options(""));
    EXPECT_TRUE(answers.descriptors());
    EXPECT_FALSE(answers.maps_under_work());
  }
  {
    // A program that opens legacy handles maps nothing, so that the answer would not be used.
    const HelperSettings settings("import=no,maps_under_work=no");
    const v1::GpuAnswers answers = *MeetGpu(Facts(), Options(""));
    EXPECT_THAT(answers.failures(), ElementsAre(HasSubstr("passing memory by descriptor: cuMem")));
    EXPECT_THAT(Describe(answers), Not(HasSubstr("maps beside")));
    EXPECT_THAT(Fallbacks(Facts(), answers), Not(Contains(HasSubstr("before they map"))));
  }
  const HelperSettings settings("mig=no", "cuMemHostRegister:1=2");
  const v1::GpuAnswers answers = *MeetGpu(Facts(), Options(""));
  EXPECT_EQ(answers.pinned_bytes_per_second(), 0);
  EXPECT_TRUE(answers.maps_under_work());
}

TEST(FirstUseTest, OnCoherentMemoryNothingIsSaidToBePinned) {
  EXPECT_THAT(Describe(*MeetGpu(Facts(), Options(""))), HasSubstr("; pins "));
  const auto coherent = [] {
    CudaDeviceFacts facts = Facts();
    const HelperSettings settings("coherent=yes");
    return *MeetGpu(facts, Options(""));
  };
  EXPECT_THAT(Describe(coherent()), AllOf(HasSubstr("coherent"), Not(HasSubstr("pins "))));
}

// A map waits for a turn behind the copies of other processes, as behind a daemon's.
TEST(FirstUseTest, AMapIsTimedBesideCopiesOfAnotherProcess) {
  // The process that asks copies out once for each way that memory passes, and then beside maps.
  const HelperSettings settings("mig=no", "cuMemcpyDtoHAsync:3=1");
  const v1::GpuAnswers answers = *MeetGpu(Facts(), Options(""));
  EXPECT_THAT(answers.failures(),
              ElementsAre(HasSubstr("copying while another process maps memory: cuMemcpyDtoH")));
  EXPECT_TRUE(answers.maps_under_work());
  EXPECT_GT(answers.longest_mapping_ms(), 0);
}

// The GPU ends the contexts of both processes that ask it.
TEST(FirstUseTest, AGpuThatFailsLeavesTheContextOfThisProcess) {
  const HelperSettings settings("mig=no", "cuMemcpyDtoHAsync:1=700");
  const v1::GpuAnswers answers = *MeetGpu(Facts(), Options(""));
  EXPECT_FALSE(answers.descriptors());
  EXPECT_FALSE(answers.legacy_ipc());
  EXPECT_TRUE(UseGpu(0).ok());
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

v1::GpuAnswers Good() {
  v1::GpuAnswers answers;
  answers.set_descriptors(true);
  answers.set_legacy_ipc(true);
  answers.set_maps_under_work(true);
  answers.set_copy_bytes_per_second(50e9);
  answers.set_copy_bytes_per_second_beside_work(48e9);
  answers.set_pinned_bytes_per_second(4e9);
  return answers;
}

TEST(FallbacksTest, NameWhatIsDoneInstead) {
  const CudaDeviceFacts facts = Facts();
  EXPECT_THAT(Fallbacks(facts, Good()), IsEmpty());
  v1::GpuAnswers answers = Good();
  answers.set_descriptors(false);
  answers.add_failures("passing memory by descriptor: refused");
  EXPECT_THAT(Fallbacks(facts, answers),
              ElementsAre(HasSubstr("refused: legacy CUDA IPC is used")));
  answers.set_legacy_ipc(false);
  EXPECT_THAT(Fallbacks(facts, answers), ElementsAre(HasSubstr("use --device none")));
  answers = Good();
  answers.set_maps_under_work(false);
  EXPECT_THAT(Fallbacks(facts, answers), ElementsAre(HasSubstr("wait for all their GPU work")));
  answers = Good();
  answers.set_copy_bytes_per_second_beside_work(20e9);
  EXPECT_THAT(Fallbacks(facts, answers), ElementsAre(HasSubstr("50.0 GB/s, and at 20.0 GB/s")));
  answers = Good();
  answers.set_pinned_bytes_per_second(0.2e9);
  EXPECT_THAT(Fallbacks(facts, answers), ElementsAre(HasSubstr("pinned at 0.2 GB/s")));
  answers.set_coherent(true);
  EXPECT_THAT(Fallbacks(facts, answers), IsEmpty());
  answers.set_pinned_bytes_per_second(0);
  EXPECT_THAT(Fallbacks(facts, answers), ElementsAre(HasSubstr("which is slower")));
}

}  // namespace
}  // namespace memtide
