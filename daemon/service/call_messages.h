// CallMessages: request, response and charge of one gRPC call. Internal to this package.
//
// gRPC has one made when a call arrives, and releases it when the call has ended, which may be long
// after its answer: a client may never read that. The request is freed as soon as it has been
// converted.
#ifndef MEMTIDE_DAEMON_SERVICE_CALL_MESSAGES_H_
#define MEMTIDE_DAEMON_SERVICE_CALL_MESSAGES_H_

#include <grpcpp/support/message_allocator.h>

#include "absl/types/optional.h"
#include "daemon/service/open_calls.h"

namespace memtide {

template <typename Request, typename Response>
class CallMessages final : public grpc::MessageHolder<Request, Response> {
 public:
  CallMessages() {
    this->set_request(&request_.emplace());
    this->set_response(&response_);
  }
  void FreeRequest() override {
    this->set_request(nullptr);
    request_.reset();
  }
  // tidy(raw-new): gRPC owns it from AllocateMessages to this call.
  void Release() override { delete this; }

  OpenCalls::Charge* charge() { return &charge_; }

 private:
  absl::optional<Request> request_;
  Response response_;
  OpenCalls::Charge charge_;
};

// Makes the messages of all calls of one method.
template <typename Request, typename Response>
class CallMessagesAllocator final : public grpc::MessageAllocator<Request, Response> {
 public:
  // `set` tells gRPC to use this for the method.
  template <typename Set>
  explicit CallMessagesAllocator(const Set& set) {
    set(static_cast<grpc::MessageAllocator<Request, Response>*>(this));
  }
  grpc::MessageHolder<Request, Response>* AllocateMessages() override {
    // tidy(raw-new): released by Release.
    return new CallMessages<Request, Response>();
  }
};

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_CALL_MESSAGES_H_
