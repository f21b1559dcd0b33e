/* main.c - entry of the expertd program; everything is in cli.c and the commands. */
#include "daemon/daemon_priv.h"

int main(int argc, char **argv)
{
    return cli_run(argc, argv);
}
