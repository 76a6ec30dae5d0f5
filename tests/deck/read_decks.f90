! The judge of the deck reader: reads <folder>/<k>.nml with gfortran's own namelist
! input and prints what it got, one line per group and file: status, then every element in hexadecimal.
! Arguments: folder, first, last. Some decks crash libgfortran; the caller then continues behind them.
program read_decks
  use, intrinsic :: iso_fortran_env, only: int64, real64, output_unit
  implicit none
  integer(int64) :: i, ia(4), tally
  real(real64) :: r, ra(5), fine, inf_rate
  logical :: l, la(3), test
  character(24) :: s, sa(3), title
  namelist /alpha/ i, ia, r, ra, l, la, s, sa
  namelist /beta/ tally, fine, inf_rate, test, title
  character(1024) :: folder, argument, file
  integer :: k, first, last, status, unit

  call get_command_argument(1, folder)
  call get_command_argument(2, argument)
  read (argument, *) first
  call get_command_argument(3, argument)
  read (argument, *) last
  do k = first, last
    i = -77; ia = -77; r = -77; ra = -77; l = .false.; la = .false.; s = '?'; sa = '?'
    tally = -77; fine = -77; inf_rate = -77; test = .false.; title = '?'
    write (file, '(a,"/",i0,".nml")') trim(folder), k
    open (newunit=unit, file=file, status='old', action='read')
    read (unit, nml=alpha, iostat=status)
    write (*, '(i0,1x)', advance='no') status
    call show_integers([i, ia])
    call show_reals([r, ra])
    call show_logicals([l, la])
    call show_strings([s, sa])
    rewind (unit)
    read (unit, nml=beta, iostat=status)
    write (*, '(/,i0,1x)', advance='no') status
    call show_integers([tally])
    call show_reals([fine, inf_rate])
    call show_logicals([test])
    call show_strings([title])
    write (*, '()')
    flush (output_unit)
    close (unit)
  end do

contains

  subroutine show_integers(v)
    integer(int64), intent(in) :: v(:)
    write (*, '(*(z16.16,1x))', advance='no') v
  end subroutine

  subroutine show_reals(v)
    real(real64), intent(in) :: v(:)
    write (*, '(*(z16.16,1x))', advance='no') transfer(v, 0_int64, size(v))
  end subroutine

  subroutine show_logicals(v)
    logical, intent(in) :: v(:)
    write (*, '(*(l1,1x))', advance='no') v
  end subroutine

  subroutine show_strings(v)
    character(24), intent(in) :: v(:)
    integer :: j, m
    do j = 1, size(v)
      do m = 1, 24
        write (*, '(z2.2)', advance='no') ichar(v(j)(m:m))
      end do
      write (*, '(1x)', advance='no')
    end do
  end subroutine
end program
