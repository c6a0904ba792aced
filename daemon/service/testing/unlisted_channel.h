// A client's channel in the process of a server that has a StreamWatch. StreamWatch reads gRPC's
// list of sockets (channelz), in which a socket stands before it is whole: a client's socket that
// another thread makes at that time would end the process ("pure virtual method called").
#ifndef MEMTIDE_DAEMON_SERVICE_TESTING_UNLISTED_CHANNEL_H_
#define MEMTIDE_DAEMON_SERVICE_TESTING_UNLISTED_CHANNEL_H_

#include <memory>
#include <string>

namespace grpc {
class Channel;
}

namespace memtide {

std::shared_ptr<grpc::Channel> UnlistedChannel(const std::string& socket_path);

// `fd` is a connected socket, which gRPC closes.
std::shared_ptr<grpc::Channel> UnlistedChannelFromFd(int fd);

}  // namespace memtide

#endif  // MEMTIDE_DAEMON_SERVICE_TESTING_UNLISTED_CHANNEL_H_
