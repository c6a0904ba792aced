#include "base/populate.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/bytes.h"
#include "gtest/gtest.h"

namespace memtide {
namespace {

constexpr size_t kSize = MiB(22).count();  // No multiple of the threads' parts.
constexpr size_t kPage = 4096;

// A shared mapping of kSize, over a file of `file_size`.
class Mapping {
 public:
  explicit Mapping(size_t file_size) : fd_(memfd_create("populate-test", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(file_size)), 0);
    void* const data = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    EXPECT_NE(data, MAP_FAILED);
    data_ = static_cast<char*>(data);
  }
  ~Mapping() {
    munmap(data_, kSize);
    close(fd_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return data_; }
  size_t ResidentPages() const {
    std::vector<unsigned char> resident(kSize / kPage);
    EXPECT_EQ(mincore(data_, kSize, resident.data()), 0);
    size_t count = 0;
    for (const unsigned char page : resident) count += page & 1;
    return count;
  }

 private:
  const int fd_;
  char* data_ = nullptr;
};

TEST(PopulateTest, EveryPageOfEachThreadsPartIsThere) {
  for (const size_t threads : {1, 2, 3, 16}) {
    const Mapping mapping(kSize);
    ASSERT_EQ(mapping.ResidentPages(), 0u);
    EXPECT_EQ(PopulateWrite(mapping.data(), kSize, threads), 0);
    EXPECT_EQ(mapping.ResidentPages(), kSize / kPage) << threads << " threads";
  }
}

TEST(PopulateTest, KeepsContent) {
  const Mapping mapping(kSize);
  mapping.data()[kSize - 1] = 'x';
  EXPECT_EQ(PopulateWrite(mapping.data(), kSize, 3), 0);
  EXPECT_EQ(mapping.data()[kSize - 1], 'x');
}

TEST(PopulateTest, AnErrorInAnyPartIsReturned) {
  // The file ends in the first thread's part, or in the last one's.
  for (const size_t file_size : {kPage, kSize - kPage}) {
    const Mapping mapping(file_size);
    EXPECT_EQ(PopulateWrite(mapping.data(), kSize, 3), EFAULT) << file_size;
  }
}

}  // namespace
}  // namespace memtide
