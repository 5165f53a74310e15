#include "apps/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <mutex>

#include "base/thread.h"

namespace kdt::apps {
namespace {

std::mutex mutex;
std::vector<std::shared_ptr<engine::RequestStream>> running;  // guarded

void wait_for_signals(sigset_t signals) {
  while (true) {
    int signal = 0;
    sigwait(&signals, &signal);
    const std::lock_guard lock(mutex);
    if (running.empty()) ::_exit(kInterruptedStatus);
    for (const auto& stream : running) stream->cancel();
    running.clear();
  }
}

}  // namespace

void install_interrupt_handler() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM}) {
    // A shell starts background jobs with SIGINT ignored: Ctrl-C is for the job in front.
    struct sigaction inherited;
    ::sigaction(signal, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  start_thread(wait_for_signals, signals).detach();
}

void cancel_on_interrupt(std::vector<std::shared_ptr<engine::RequestStream>> streams) {
  const std::lock_guard lock(mutex);
  running = std::move(streams);
}

}  // namespace kdt::apps
