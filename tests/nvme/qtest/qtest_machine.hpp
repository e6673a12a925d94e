// A machine of QEMU without a guest: its qtest socket carries register accesses, and a file is its memory.
//
// The protocol has one line for a request and one for the answer. The addresses of DMA are offsets in the file. The
// machine is QEMU's q35 with the controllers in slots of its PCI bus 0.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>

#include "nvme/dma_memory.hpp"
#include "nvme/register_access.hpp"

namespace gpu4fs::nvme::test {

class QtestMachine : public DmaMemory {
 public:
  // Throws std::runtime_error.
  QtestMachine(const std::string& socket_path, const std::string& memory_path);
  ~QtestMachine() override;
  QtestMachine(const QtestMachine&) = delete;
  QtestMachine& operator=(const QtestMachine&) = delete;

  DmaBlock allocate(u64 bytes) override;

  // All ones if QEMU is gone.
  u32 read_memory_32(u64 address);
  void write_memory_32(u64 address, u32 value);
  u32 read_config_32(u32 slot, u32 offset);
  void write_config_32(u32 slot, u32 offset, u32 value);

 private:
  std::string ask(const std::string& request);

  std::mutex mutex_;
  int socket_ = -1;
  u8* memory_ = nullptr;
  u64 memory_bytes_ = 0;
  u64 used_ = u64{16} << 20;  // the firmware's place is below
  bool is_gone_ = false;
};

// One controller. The engine stores doorbells to words here, and a thread forwards them.
class QtestRegisters : public RegisterAccess {
 public:
  // `machine` outlives this.
  QtestRegisters(QtestMachine& machine, u32 slot);
  ~QtestRegisters() override;

  u32 read_32(u32 offset) override;
  void write_32(u32 offset, u32 value) override;
  u32* doorbell(u32 offset) override;
  void stop_dma() override;
  void allow_dma() override;

 private:
  static constexpr u32 queue_max = 16;

  void forward();
  void send_changed(u32 index, u32 value);

  QtestMachine& machine_;
  u32 slot_;
  u64 base_;
  std::mutex mutex_;  // `sent_`, and the words while they are cleared
  u32 words_[2 * queue_max] = {};
  u32 sent_[2 * queue_max] = {};
  std::atomic<bool> is_stopping_{false};
  std::thread thread_;
};

}  // namespace gpu4fs::nvme::test
