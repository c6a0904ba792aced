#include "daemon/io/uring_disk.h"

#include <liburing.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/mutex.h"
#include "daemon/io/io_error.h"
#include "daemon/io/registered_buffers.h"

#ifndef IORING_SETUP_SINGLE_ISSUER
#error "liburing 2.3 or later is needed"
#endif

namespace memtide {
namespace {

// Set-up flags in order of preference; older kernels refuse newer flags with EINVAL. A single
// issuer that runs completions when it asks for them gets batches and no interrupts.
constexpr unsigned kSetups[] = {
    IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_CLAMP | IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_CLAMP,
};

int SetUp(unsigned entries, io_uring* ring) {
  int result = -EINVAL;
  for (const unsigned flags : kSetups) {
    result = io_uring_queue_init(entries, ring, flags);
    if (result != -EINVAL) break;
  }
  return result;
}

}  // namespace

class UringDisk::Ring {
 public:
  Ring(std::shared_ptr<const StoreTable> stores, const IoSchedulerOptions& options)
      : scheduler_(std::move(stores), options), wake_(eventfd(0, EFD_CLOEXEC)) {}
  ~Ring();

  // Starts the thread. Zero or a negative errno.
  int Open();

  void Add(Transfer transfer) { Post(std::move(transfer)); }
  void AddBuffer(char* memory, Bytes size) { Post(BufferAdded{memory, size}); }
  void RemoveBuffer(char* memory);
  void Expedite(TransferId transfer) { Post(Awaited{transfer}); }
  std::string DescribeBuffers() const { return buffers_.Describe(); }

 private:
  struct BufferAdded {
    char* memory;
    Bytes size;
  };
  struct BufferRemoved {
    char* memory;
    std::promise<void>* done;
  };
  struct Awaited {
    TransferId transfer;
  };
  struct Stop {};
  using Command = std::variant<Transfer, BufferAdded, BufferRemoved, Awaited, Stop>;

  void Post(Command command);

  // Used by the ring's thread only.
  void Run(std::promise<int>* opened);
  void TakeInbox();
  void Handle(Transfer& transfer);
  void Handle(const BufferAdded& added) { buffers_.Add(added.memory, added.size); }
  void Handle(const BufferRemoved& removed);
  void Handle(const Awaited& awaited) { scheduler_.Expedite(awaited.transfer); }
  void Handle(Stop) { stopping_ = true; }
  void ArmWake();
  void Submit(Piece* piece);
  io_uring_sqe* NextEntry();
  void SubmitAndWait();
  void Complete(const io_uring_cqe& completion);

  IoScheduler scheduler_;
  RegisteredBuffers buffers_;
  io_uring ring_;
  bool stopping_ = false;
  bool wake_armed_ = false;
  uint64_t wake_value_ = 0;  // The ring reads wake_ into it.
  std::vector<Command> taken_;

  const OwnedFd wake_;
  Mutex mutex_;
  std::vector<Command> inbox_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

int UringDisk::Ring::Open() {
  if (!wake_.valid()) return -EMFILE;
  std::promise<int> opened;
  std::future<int> result = opened.get_future();
  // The kernel takes the thread that sets up the ring as its single issuer.
  thread_ = std::thread([this, &opened] { Run(&opened); });
  pthread_setname_np(thread_.native_handle(), "memtide-uring");
  return result.get();
}

UringDisk::Ring::~Ring() {
  // Open starts no thread without an eventfd.
  if (!thread_.joinable()) return;
  Post(Stop{});
  thread_.join();
}

void UringDisk::Ring::RemoveBuffer(char* memory) {
  std::promise<void> done;
  std::future<void> removed = done.get_future();
  // A ring with a single issuer takes registrations from its own thread only.
  Post(BufferRemoved{memory, &done});
  removed.get();
}

void UringDisk::Ring::Post(Command command) {
  bool was_empty;
  {
    MutexLock lock(&mutex_);
    was_empty = inbox_.empty();
    inbox_.push_back(std::move(command));
  }
  // Only the command that finds the inbox empty wakes the thread, which then takes all of them.
  if (was_empty) MEMTIDE_CHECK(eventfd_write(wake_.get(), 1) == 0) << ErrnoName(errno);
}

void UringDisk::Ring::Run(std::promise<int>* opened) {
  // Room for every piece, the wake-up read, and the wake-up read that follows it.
  const int result = SetUp(static_cast<unsigned>(scheduler_.capacity()) + 2, &ring_);
  if (result == 0) buffers_.Init(&ring_);
  opened->set_value(result);
  if (result < 0) return;
  while (true) {
    TakeInbox();
    // Submit only queues an entry; SubmitAndWait starts all of them in one system call (decision
    // 7).
    while (Piece* piece = scheduler_.Next()) Submit(piece);
    // The armed read writes to wake_value_, so the thread waits for it.
    if (stopping_ && scheduler_.idle() && !wake_armed_) break;
    if (!stopping_ && !wake_armed_) ArmWake();
    SubmitAndWait();
    unsigned head;
    unsigned count = 0;
    io_uring_cqe* completion;
    io_uring_for_each_cqe(&ring_, head, completion) {
      ++count;
      Complete(*completion);
    }
    io_uring_cq_advance(&ring_, count);
  }
  io_uring_queue_exit(&ring_);
}

void UringDisk::Ring::TakeInbox() {
  {
    MutexLock lock(&mutex_);
    // The commands run without the lock: registering a buffer pins its pages in a system call.
    taken_.swap(inbox_);
  }
  for (Command& command : taken_) {
    std::visit([this](auto& value) { Handle(value); }, command);
  }
  taken_.clear();
}

void UringDisk::Ring::Handle(Transfer& transfer) {
  // The index stays valid: RemoveBuffer requires that no transfer uses the buffer.
  transfer.registered_buffer = buffers_.Find(transfer.request.memory, transfer.request.size);
  scheduler_.Add(std::move(transfer));
}

void UringDisk::Ring::Handle(const BufferRemoved& removed) {
  buffers_.Remove(removed.memory);
  removed.done->set_value();
}

void UringDisk::Ring::ArmWake() {
  io_uring_sqe* const entry = NextEntry();
  // Reading the eventfd through the ring lets the thread wait for commands and completions at once.
  io_uring_prep_read(entry, wake_.get(), &wake_value_, sizeof(wake_value_), 0);
  io_uring_sqe_set_data(entry, nullptr);
  wake_armed_ = true;
}

void UringDisk::Ring::Submit(Piece* piece) {
  io_uring_sqe* const entry = NextEntry();
  const unsigned size = static_cast<unsigned>(piece->size.count());
  const uint64_t offset = piece->file_offset.count();
  const Transfer& transfer = piece->transfer();
  const bool read = transfer.request.direction == DiskTransfer::Direction::kRead;
  const int buffer = transfer.registered_buffer;
  if (buffer >= 0 && read) {
    io_uring_prep_read_fixed(entry, piece->fd, piece->memory, size, offset, buffer);
  } else if (buffer >= 0) {
    io_uring_prep_write_fixed(entry, piece->fd, piece->memory, size, offset, buffer);
  } else if (read) {
    io_uring_prep_read(entry, piece->fd, piece->memory, size, offset);
  } else {
    io_uring_prep_write(entry, piece->fd, piece->memory, size, offset);
  }
  io_uring_sqe_set_data(entry, piece);
}

io_uring_sqe* UringDisk::Ring::NextEntry() {
  io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
  // The scheduler never gives out more pieces than the ring was made for.
  MEMTIDE_CHECK(entry != nullptr) << scheduler_.capacity();
  return entry;
}

void UringDisk::Ring::SubmitAndWait() {
  const int result = io_uring_submit_and_wait(&ring_, 1);
  if (result >= 0 || result == -EINTR) return;
  MEMTIDE_CHECK(result == -EAGAIN || result == -EBUSY) << ErrnoName(-result);
  // The kernel is short of memory for requests. Requests that are not submitted stay in the queue;
  // without a pause, nothing in flight would mean spinning.
  // tidy(sleep): there is no event for free memory.
  if (io_uring_cq_ready(&ring_) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void UringDisk::Ring::Complete(const io_uring_cqe& completion) {
  // The read that ArmWake starts is the only entry without a piece.
  auto* const piece = static_cast<Piece*>(io_uring_cqe_get_data(&completion));
  if (piece == nullptr) {
    wake_armed_ = false;
    return;
  }
  absl::optional<Completion> ended;
  if (scheduler_.Advance(piece, completion.res, &ended) == IoScheduler::Outcome::kResubmit)
    Submit(piece);
  if (ended.has_value()) ended->done(std::move(ended->status));
}

absl::StatusOr<std::unique_ptr<UringDisk>> UringDisk::Create(std::shared_ptr<StoreTable> stores,
                                                             const IoSchedulerOptions& options) {
  auto ring = std::make_unique<Ring>(stores, options);
  const int result = ring->Open();
  if (result < 0) {
    return absl::UnavailableError(absl::StrCat("io_uring refused: ", ErrnoName(-result)));
  }
  return std::unique_ptr<UringDisk>(new UringDisk(std::move(stores), std::move(ring)));
}

UringDisk::UringDisk(std::shared_ptr<StoreTable> stores, std::unique_ptr<Ring> ring)
    : StoredDisk(std::move(stores)), ring_(std::move(ring)) {}

UringDisk::~UringDisk() = default;

std::string UringDisk::Describe() const {
  return absl::StrCat("io_uring, ", ring_->DescribeBuffers(), ", ", stores_->Describe());
}

void UringDisk::Expedite(TransferId transfer) { ring_->Expedite(transfer); }

void UringDisk::AddBuffer(char* memory, Bytes size) { ring_->AddBuffer(memory, size); }

void UringDisk::RemoveBuffer(char* memory) { ring_->RemoveBuffer(memory); }

void UringDisk::Start(const DiskTransfer& transfer, Done done) {
  Transfer started;
  started.request = transfer;
  started.done = std::move(done);
  started.store = stores_->Find(transfer.store);
  ring_->Add(std::move(started));
}

}  // namespace memtide
