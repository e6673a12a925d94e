#include "nvme/vfio/vfio_registers.hpp"

#include <fmt/format.h>
#include <linux/pci_regs.h>
#include <linux/vfio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "base/access.hpp"
#include "device/nvme/spec/registers.hpp"
#include "nvme/controller_info.hpp"

namespace gpu4fs::nvme {
namespace {

vfio_region_info region_of(int device, u32 index) {
  vfio_region_info region{};
  region.argsz = sizeof(region);
  region.index = index;
  if (::ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &region) != 0) {
    throw std::runtime_error(fmt::format("VFIO: VFIO_DEVICE_GET_REGION_INFO: {}", std::strerror(errno)));
  }
  return region;
}

}  // namespace

VfioRegisters::VfioRegisters(int device) : device_(device) {
  config_offset_ = region_of(device_, VFIO_PCI_CONFIG_REGION_INDEX).offset;
  const vfio_region_info bar = region_of(device_, VFIO_PCI_BAR0_REGION_INDEX);
  if (bar.size < static_cast<u32>(Register::doorbells) + 4096 || (bar.flags & VFIO_REGION_INFO_FLAG_MMAP) == 0) {
    throw std::runtime_error("VFIO: the controller's registers cannot be mapped");
  }
  set_command(PCI_COMMAND_MEMORY | PCI_COMMAND_INTX_DISABLE);
  bytes_ = bar.size;
  void* const registers =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, device_, static_cast<off_t>(bar.offset));
  if (registers == MAP_FAILED) {
    throw std::runtime_error(
        fmt::format("VFIO: the controller's registers cannot be mapped: {}", std::strerror(errno)));
  }
  registers_ = static_cast<u8*>(registers);
}

VfioRegisters::~VfioRegisters() {
  stop_dma();
  ::munmap(registers_, bytes_);
}

// Other bits stay as the kernel has set them. The read that follows ends when the device has the write. What the device
// wrote to memory before comes before the answer to this read.
void VfioRegisters::set_command(u16 bits) {
  constexpr u16 own = PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE;
  const auto place = static_cast<off_t>(config_offset_ + PCI_COMMAND);
  const std::lock_guard<std::mutex> guard(mutex_);
  u16 command = 0;
  bool is_done = device_ >= 0 && ::pread(device_, &command, sizeof(command), place) == sizeof(command);
  command = static_cast<u16>((command & ~own) | bits);
  is_done = is_done && ::pwrite(device_, &command, sizeof(command), place) == sizeof(command);
  is_done = is_done && ::pread(device_, &command, sizeof(command), place) == sizeof(command);
  // A device that is gone does no DMA.
  if (!is_done && (bits & PCI_COMMAND_MASTER) != 0) {
    throw ControllerError(Failure::absent, "NVMe controller: its PCI configuration cannot be written");
  }
}

void VfioRegisters::allow_dma() {
  set_command(PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_INTX_DISABLE);
}

void VfioRegisters::stop_dma() {
  set_command(PCI_COMMAND_MEMORY | PCI_COMMAND_INTX_DISABLE);
}

// The mapping is replaced in one step, so whoever accesses a register meanwhile finds one or the other.
void VfioRegisters::release() {
  stop_dma();
  const std::lock_guard<std::mutex> guard(mutex_);
  if (device_ < 0) return;
  device_ = -1;
  void* const copy = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (copy != MAP_FAILED) {
    std::memset(copy, 0xff, bytes_);
    if (::mremap(copy, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, registers_) != MAP_FAILED) return;
    ::munmap(copy, bytes_);
  }
  // Without memory: registers that read as 0, of a controller that is not ready.
  (void)::mmap(registers_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
               0);
}

bool VfioRegisters::is_dma_allowed() {
  u16 command = 0;
  const auto place = static_cast<off_t>(config_offset_ + PCI_COMMAND);
  return ::pread(device_, &command, sizeof(command), place) == sizeof(command) && (command & PCI_COMMAND_MASTER) != 0;
}

u32* VfioRegisters::place(u32 offset) {
  if (u64{offset} + sizeof(u32) > bytes_) {
    throw ControllerError(Failure::refused, "NVMe controller: a register beyond the end of its BAR 0");
  }
  return reinterpret_cast<u32*>(registers_ + offset);
}

u32 VfioRegisters::read_32(u32 offset) {
  return load<Order::acquire, Scope::system>(place(offset));
}

void VfioRegisters::write_32(u32 offset, u32 value) {
  store<Order::release, Scope::system>(place(offset), value);
}

u32* VfioRegisters::doorbell(u32 offset) {
  return place(offset);
}

}  // namespace gpu4fs::nvme
