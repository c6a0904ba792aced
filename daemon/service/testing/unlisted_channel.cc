#include "daemon/service/testing/unlisted_channel.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>

namespace memtide {
namespace {

grpc::ChannelArguments Unlisted() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_CHANNELZ, 0);
  return arguments;
}

}  // namespace

std::shared_ptr<grpc::Channel> UnlistedChannel(const std::string& socket_path) {
  return grpc::CreateCustomChannel("unix:" + socket_path, grpc::InsecureChannelCredentials(),
                                   Unlisted());
}

std::shared_ptr<grpc::Channel> UnlistedChannelFromFd(int fd) {
  return grpc::CreateCustomInsecureChannelFromFd("memtide", fd, Unlisted());
}

}  // namespace memtide
