"""Mounts of another user under the name of a pool: the tools do not confuse them with the pool."""

import ctypes
import errno
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from mounted_pool import PROGRAM, gpu4fs, in_own_namespace, require_fuse  # noqa: E402

libc = ctypes.CDLL(None, use_errno=True)
GETATTR, GETXATTR, INIT = 3, 22, 26
MNT_DETACH = 2
OTHER_USER = 1001


class PlayedServer:
    """A user's FUSE mount that has only the attributes of a gpu4fs mount."""

    def __init__(self, source, directory, user, attributes):
        self.directory, self.attributes = directory, attributes
        self.requests = []
        self.channel = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.channel},rootmode=40000,user_id={user},group_id={user},allow_other"
        words = [word.encode() for word in (source, directory, "fuse.gpu4fs", options)]
        if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(6), words[3]) != 0:
            raise OSError(ctypes.get_errno(), "mount")
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def end(self):
        libc.umount2(self.directory.encode(), MNT_DETACH)
        self.thread.join()
        os.close(self.channel)

    def serve(self):
        while True:
            try:
                request = os.read(self.channel, 1 << 20)
            except OSError as error:
                if error.errno == errno.EINTR or error.errno == errno.EAGAIN:
                    continue
                return
            _, operation, unique = struct.unpack_from("<IIQ", request)
            self.requests.append(operation)
            result, content = self.answer(operation, request[40:])
            os.write(self.channel, struct.pack("<IiQ", 16 + len(content), result, unique) + content)

    def answer(self, operation, body):
        if operation == INIT:
            return 0, struct.pack("<IIII", 7, 31, 0, 0).ljust(16, b"\0") + struct.pack("<HHI", 0, 0, 4096) + bytes(40)
        if operation == GETATTR:
            attributes = struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0)
            return 0, bytes(16) + attributes
        if operation == GETXATTR:
            room = struct.unpack_from("<I", body)[0]
            value = self.attributes.get(body[8:].split(b"\0")[0].decode())
            if value is not None and room >= len(value):
                return 0, value.encode()
            return -errno.ENODATA, b""
        return -errno.ENOSYS, b""


class PlayedSocket:
    """Accepts one request at a time."""

    def __init__(self, path):
        self.requests = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def end(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()

    def serve(self):
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return
            with client, client.makefile("rw") as file:
                line = file.readline()
                if line:
                    self.requests.append(json.loads(line)["request"])
                    try:
                        file.write('{"ok": true}\n')
                        file.flush()
                    except OSError:
                        pass


class ForeignMounts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.device = os.path.join(self.folder, "device")
        done = gpu4fs("mkfs", "--quiet", "--size", "32M", self.device)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.directory = os.path.join(self.folder, "mount")
        os.mkdir(self.directory)
        self.socket = PlayedSocket(os.path.join(self.folder, "socket"))
        self.addCleanup(self.socket.end)

    def mount(self, user):
        attributes = {"user.gpu4fs.server.socket": os.path.join(self.folder, "socket")}
        server = PlayedServer(self.device, self.directory, user, attributes)
        self.addCleanup(server.end)
        return server

    def call(self, *words):
        return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60)

    def test_the_name_of_a_device_does_not_lead_to_one(self):
        server = self.mount(OTHER_USER)
        self.assertNotEqual(self.call("trim", self.device).returncode, 0)
        self.assertEqual(self.call("umount", self.device).returncode, 32)
        self.assertNotIn(GETXATTR, server.requests)
        self.assertEqual(self.socket.requests, [])
        self.assertTrue(os.path.ismount(self.directory))

    def test_its_directory_does_but_not_to_a_socket_of_others(self):
        server = self.mount(OTHER_USER)
        done = self.call("trim", self.directory)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("is not the socket of who mounted it", done.stderr)
        self.assertIn(GETXATTR, server.requests)
        self.assertEqual(self.socket.requests, [])
        self.assertEqual(self.call("umount", self.directory).returncode, 0)

    def test_roots_own_is_found_by_both(self):
        self.mount(0)
        for place in (self.device, self.directory):
            self.call("trim", place)
        self.assertEqual(self.socket.requests, ["trim", "trim"])


if __name__ == "__main__":
    require_fuse()
    in_own_namespace(is_needed=True)
    unittest.main()
