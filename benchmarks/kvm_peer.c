/*
 * What a C program measures with the ioctls that worldswitch makes from Python. Commands on standard input, one a line:
 *
 *   create    ns of KVM_CREATE_VM, and of closing the VM
 *   run N     run the image in a new VM with N passes: ns from the first KVM_RUN to the end, TSC cycles of the passes
 *
 * usage: kvm_peer [IMAGE]    (written by harness.py: see write_flat there)
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

struct region { uint64_t gpa, size; };
struct segment { uint64_t gpa, length; const uint8_t *data; };

static struct region regions[MOST];
static uint8_t *backing[MOST];
static struct segment segments[MOST];
static uint64_t n_regions, n_segments, n_cpuid, rip, rsp, end, area;
static struct kvm_cpuid2 *cpuid;
static struct kvm_sregs sregs;

static void fail(const char *what)
{
	perror(what);
	exit(3);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static const uint8_t *take(const uint8_t **at, size_t size)
{
	const uint8_t *here = *at;

	*at += size;
	return here;
}

static uint64_t word(const uint8_t **at)
{
	uint64_t value;

	memcpy(&value, take(at, sizeof(value)), sizeof(value));
	return value;
}

static void load(const char *path)
{
	FILE *file = fopen(path, "rb");
	const uint8_t *at;
	uint8_t *all;
	long size;

	if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0)
		fail(path);
	rewind(file);
	all = malloc(size);
	if (!all || fread(all, 1, size, file) != (size_t)size)
		fail(path);
	fclose(file);
	at = all;
	n_regions = word(&at);
	n_segments = word(&at);
	n_cpuid = word(&at);
	if (n_regions > MOST || n_segments > MOST) {
		fprintf(stderr, "%s: too many regions or segments\n", path);
		exit(3);
	}
	rip = word(&at);
	rsp = word(&at);
	end = word(&at);
	area = word(&at);
	for (uint64_t i = 0; i < n_regions; i++) {
		regions[i].gpa = word(&at);
		regions[i].size = word(&at);
	}
	for (uint64_t i = 0; i < n_segments; i++) {
		segments[i].gpa = word(&at);
		segments[i].length = word(&at);
		segments[i].data = take(&at, segments[i].length);
	}
	memcpy(&sregs, take(&at, sizeof(sregs)), sizeof(sregs));
	cpuid = calloc(1, sizeof(*cpuid) + n_cpuid * sizeof(struct kvm_cpuid_entry2));
	cpuid->nent = n_cpuid;
	memcpy(cpuid->entries, take(&at, n_cpuid * sizeof(struct kvm_cpuid_entry2)),
	       n_cpuid * sizeof(struct kvm_cpuid_entry2));
}

static uint8_t *guest(uint64_t gpa)
{
	for (uint64_t i = 0; i < n_regions; i++)
		if (gpa >= regions[i].gpa && gpa - regions[i].gpa < regions[i].size)
			return backing[i] + (gpa - regions[i].gpa);
	fprintf(stderr, "no memory at %#lx\n", (unsigned long)gpa);
	exit(3);
}

/* As the workers of live/timed_call.py wait at their gate: asleep, then spinning. */
static uint64_t settled(void)
{
	uint64_t until;

	usleep(1000);
	until = now() + 300000;
	while (now() < until)
		__builtin_ia32_pause();
	return now();
}

static void create(int kvm)
{
	uint64_t start = settled(), made, closing, closed;
	int vm = ioctl(kvm, KVM_CREATE_VM, 0);

	made = now();
	if (vm < 0)
		fail("KVM_CREATE_VM");
	closing = settled();
	close(vm);
	closed = now();
	printf("%lu %lu\n", (unsigned long)(made - start), (unsigned long)(closed - closing));
}

static void run(int kvm, uint64_t n)
{
	int vm = ioctl(kvm, KVM_CREATE_VM, 0), vcpu, size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
	struct kvm_regs regs = {.rip = rip, .rsp = rsp, .rflags = 2};
	struct kvm_run *state;
	uint64_t start, stop, first, last;

	if (vm < 0 || size < 0)
		fail("KVM_CREATE_VM");
	for (uint64_t i = 0; i < n_regions; i++) {
		struct kvm_userspace_memory_region slot = {i, 0, regions[i].gpa, regions[i].size, 0};

		backing[i] = mmap(NULL, regions[i].size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (backing[i] == MAP_FAILED)
			fail("mmap");
		madvise(backing[i], regions[i].size, MADV_NOHUGEPAGE);
		slot.userspace_addr = (uint64_t)backing[i];
		if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &slot))
			fail("KVM_SET_USER_MEMORY_REGION");
	}
	for (uint64_t i = 0; i < n_segments; i++)
		memcpy(guest(segments[i].gpa), segments[i].data, segments[i].length);
	memcpy(guest(area), &n, sizeof(n));
	vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
	if (vcpu < 0)
		fail("KVM_CREATE_VCPU");
	state = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
	if (state == MAP_FAILED)
		fail("mmap");
	if (ioctl(vcpu, KVM_SET_CPUID2, cpuid) || ioctl(vcpu, KVM_SET_SREGS, &sregs) || ioctl(vcpu, KVM_SET_REGS, &regs))
		fail("the vCPU's state");
	start = now();
	for (;;) {
		if (ioctl(vcpu, KVM_RUN, 0))
			fail("KVM_RUN");
		if (state->exit_reason != KVM_EXIT_HLT) {
			fprintf(stderr, "KVM_RUN ended with reason %u\n", state->exit_reason);
			exit(3);
		}
		if (ioctl(vcpu, KVM_GET_REGS, &regs))
			fail("KVM_GET_REGS");
		if (regs.rip == end)
			break;
	}
	stop = now();
	memcpy(&first, guest(area) + 8, sizeof(first));
	memcpy(&last, guest(area) + 16, sizeof(last));
	munmap(state, size);
	close(vcpu);
	close(vm);
	for (uint64_t i = 0; i < n_regions; i++)
		munmap(backing[i], regions[i].size);
	printf("%lu %lu\n", (unsigned long)(stop - start), (unsigned long)(last - first));
}

int main(int argc, char **argv)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	char line[64];
	unsigned long n;

	if (kvm < 0)
		fail("/dev/kvm");
	if (argc > 1)
		load(argv[1]);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "create\n"))
			create(kvm);
		else if (sscanf(line, "run %lu", &n) == 1)
			run(kvm, n);
		fflush(stdout);
	}
	return 0;
}
