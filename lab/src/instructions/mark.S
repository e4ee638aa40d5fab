/* A program that executes the instruction at which count.c writes its counts, and exits. */
.globl _start
_start:
    .byte 0x0f, 0x1f, 0x84, 0x00, 0x4c, 0x75, 0x6c, 0x6c
    mov $231, %eax /* exit_group */
    xor %edi, %edi
    syscall
