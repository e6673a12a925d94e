#include "nvme/qtest/qtest_machine.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "base/access.hpp"
#include "base/bits.hpp"
#include "base/limits.hpp"
#include "device/nvme/spec/registers.hpp"

namespace gpu4fs::nvme::test {
namespace {

// A hole of the q35's memory map.
constexpr u64 register_window = 0xe4000000;
constexpr u64 register_bytes = 0x10000;
constexpr u32 config_command = 0x04;
constexpr u32 command_memory = 0x2;
constexpr u32 command_master = 0x4;

std::string hex(u64 value) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

QtestMachine::QtestMachine(const std::string& socket_path, const std::string& memory_path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path)) throw std::runtime_error("the path of the socket is too long");
  std::memcpy(address.sun_path, socket_path.c_str(), socket_path.size());
  socket_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0 || ::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    throw std::runtime_error("no QEMU at " + socket_path);
  }
  const int file = ::open(memory_path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) throw std::runtime_error("no memory at " + memory_path);
  memory_bytes_ = static_cast<u64>(status.st_size);
  void* const memory = ::mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) throw std::runtime_error("the machine's memory cannot be mapped");
  memory_ = static_cast<u8*>(memory);
}

QtestMachine::~QtestMachine() {
  ::munmap(memory_, memory_bytes_);
  ::close(socket_);
}

DmaBlock QtestMachine::allocate(u64 bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const u64 length = align_up(bytes, page_size);
  if (length > memory_bytes_ - used_) throw std::runtime_error("the machine has no memory left");
  const DmaBlock block{memory_ + used_, used_, length};
  std::memset(block.memory, 0, length);
  used_ += length;
  return block;
}

std::string QtestMachine::ask(const std::string& request) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (is_gone_) return {};
  const std::string line = request + "\n";
  std::string answer;
  if (::send(socket_, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size())) is_gone_ = true;
  for (char byte = 0; !is_gone_;) {
    if (::recv(socket_, &byte, 1, 0) != 1) {
      is_gone_ = true;
    } else if (byte == '\n') {
      break;
    } else {
      answer += byte;
    }
  }
  return is_gone_ ? std::string{} : answer;
}

u32 QtestMachine::read_memory_32(u64 address) {
  const std::string answer = ask("readl " + hex(address));
  return answer.rfind("OK ", 0) == 0 ? static_cast<u32>(std::strtoull(answer.c_str() + 3, nullptr, 16)) : ~0u;
}
void QtestMachine::write_memory_32(u64 address, u32 value) {
  ask("writel " + hex(address) + " " + hex(value));
}

u32 QtestMachine::read_config_32(u32 slot, u32 offset) {
  ask("outl 0xcf8 " + hex(0x80000000u | slot << 11 | offset));
  const std::string answer = ask("inl 0xcfc");
  return answer.rfind("OK ", 0) == 0 ? static_cast<u32>(std::strtoull(answer.c_str() + 3, nullptr, 16)) : ~0u;
}
void QtestMachine::write_config_32(u32 slot, u32 offset, u32 value) {
  ask("outl 0xcf8 " + hex(0x80000000u | slot << 11 | offset));
  ask("outl 0xcfc " + hex(value));
}

QtestRegisters::QtestRegisters(QtestMachine& machine, u32 slot)
    : machine_(machine), slot_(slot), base_(register_window + slot * register_bytes) {
  machine_.write_config_32(slot_, 0x10, static_cast<u32>(base_));
  machine_.write_config_32(slot_, 0x14, 0);
  allow_dma();
  thread_ = std::thread([this] { forward(); });
}

QtestRegisters::~QtestRegisters() {
  is_stopping_.store(true);
  thread_.join();
}

void QtestRegisters::allow_dma() {
  machine_.write_config_32(slot_, config_command, command_memory | command_master);
}
void QtestRegisters::stop_dma() {
  machine_.write_config_32(slot_, config_command, command_memory);
}

u32 QtestRegisters::read_32(u32 offset) {
  return machine_.read_memory_32(base_ + offset);
}

void QtestRegisters::write_32(u32 offset, u32 value) {
  const std::lock_guard<std::mutex> guard(mutex_);
  machine_.write_memory_32(base_ + offset, value);
  if (offset != static_cast<u32>(Register::cc) || (value & cc_enable) != 0) return;
  // The controller's doorbells are 0 after a reset.
  for (u32 i = 0; i < 2 * queue_max; ++i) {
    sent_[i] = 0;
    store<Order::release, Scope::system>(&words_[i], 0);
  }
}

u32* QtestRegisters::doorbell(u32 offset) {
  const u32 index = (offset - static_cast<u32>(Register::doorbells)) / 4;
  if (index >= 2 * queue_max) throw std::runtime_error("too many queues for this test");
  return &words_[index];
}

void QtestRegisters::send_changed(u32 index, u32 value) {
  if (value == sent_[index]) return;
  machine_.write_memory_32(base_ + static_cast<u32>(Register::doorbells) + 4 * index, value);
  sent_[index] = value;
}

// Of a queue the tail is read first and sent last: the head in front of which it was moved is then sent before it.
void QtestRegisters::forward() {
  while (!is_stopping_.load()) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      for (u32 queue = 0; queue < queue_max; ++queue) {
        const u32 tail = load<Order::acquire, Scope::system>(&words_[2 * queue]);
        const u32 head = load<Order::acquire, Scope::system>(&words_[2 * queue + 1]);
        send_changed(2 * queue + 1, head);
        send_changed(2 * queue, tail);
      }
    }
    backoff(1000);
  }
}

}  // namespace gpu4fs::nvme::test
