#include "daemon/mover/work_queue.h"

#include <pthread.h>

#include <utility>

namespace memtide {

WorkQueue::WorkQueue(const char* name) : thread_([this] { Run(); }) {
  pthread_setname_np(thread_.native_handle(), name);
}

WorkQueue::~WorkQueue() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void WorkQueue::Push(std::function<void()> task) {
  MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  changed_.Signal();
}

void WorkQueue::Run() {
  while (true) {
    std::function<void()> task;
    {
      MutexLock lock(&mutex_);
      while (tasks_.empty() && !closing_) changed_.Wait(&mutex_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace memtide
