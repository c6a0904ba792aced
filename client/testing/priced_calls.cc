// Where a card is played (base/cuda/fake/card.h), a call to the daemon takes the card's time. The
// linker puts this around the count of calls, so that the client itself knows nothing of it.
#include "base/cuda/fake/torch_backend.h"
#include "client/lease/lease_monitor.h"

extern "C" {

void __real__ZN7memtide6client12LeaseMonitor9CountCallEv(memtide::client::LeaseMonitor* monitor);

void __wrap__ZN7memtide6client12LeaseMonitor9CountCallEv(memtide::client::LeaseMonitor* monitor) {
  memtide_fake_spend("call");
  __real__ZN7memtide6client12LeaseMonitor9CountCallEv(monitor);
}

}  // extern "C"
